#pragma once

// A stream to or from another worker, and the door through which others' streams come in.
//
// Before: common/transport/transport.h accepts a stream on the worker's port. After: once it has
// said whose it is (HELLO), it belongs to sync/client/factor_exchange.h of that epoch.
//
// Everything runs on the transport's loop.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/probes/refusal_log.h"
#include "common/transport/transport.h"
#include "common/wire/factor_wire.h"
#include "common/wire/wire.h"

namespace poseidon {

/// Streams that have not said whose they are; more are turned away.
inline constexpr std::size_t kMaxUnboundPeerStreams = 256;

/// A stream without a valid HELLO by then is closed: it would only take up a place.
inline constexpr Milliseconds kHelloTimeout{30000};

/// Who opened a stream: what differs is how the other side hears of a refusal.
enum class PeerStreamOrigin { kConnected, kAccepted };

class PeerStream final : public StreamHandler {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_message(PeerStream& stream, const Bytes& message) = 0;
    virtual void on_written(PeerStream& stream) = 0;
    /// Last event; the owner destroys the stream now.
    virtual void on_closed(PeerStream& stream, const absl::Status& status) = 0;
  };

  PeerStream(Owner* owner, PeerStreamOrigin origin) : owner_(owner), origin_(origin) {}
  void attach(std::unique_ptr<Stream> stream) { stream_ = std::move(stream); }
  void give_to(Owner* owner, WorkerRank peer) {
    owner_ = owner;
    peer_ = peer;
  }

  PeerStreamOrigin origin() const { return origin_; }
  WorkerRank peer() const { return peer_; }
  std::string address() const { return stream_->peer(); }
  bool may_write() const { return !writing_ && !closing_; }
  bool closing() const { return closing_; }
  void write(OutgoingMessage message) {
    writing_ = true;
    stream_->write(std::move(message));
  }
  void close(const absl::Status& why) {
    closing_ = true;
    stream_->close(why);
  }

  ReadNext on_message(Bytes message) override {
    if (!closing_) owner_->on_message(*this, message);  // may destroy this
    return ReadNext::kContinue;
  }
  void on_written() override {
    writing_ = false;
    if (!closing_) owner_->on_written(*this);
  }
  void on_closed(const absl::Status& status) override { owner_->on_closed(*this, status); }

 private:
  Owner* owner_;
  const PeerStreamOrigin origin_;
  WorkerRank peer_;
  bool writing_ = false;
  bool closing_ = false;
  std::unique_ptr<Stream> stream_;  ///< dies first: nothing is heard after it
};

/// The worker's listening end. Lives as long as the process; jobs come and go behind it.
class PeerDoor final : public Acceptor, public PeerStream::Owner {
 public:
  /// The job behind the door.
  class Host {
   public:
    virtual ~Host() = default;
    /// Whether a stream with this first message may come in. OK, or the status to close it with:
    /// ABORTED asks the other side to try again later.
    /// What it refuses, the host counts itself, by count_refusal.
    virtual absl::Status admit(const PeerStream& stream, const FactorHeader& hello,
                               std::size_t payload_bytes) = 0;
    /// It is the host's now.
    virtual void adopt(std::unique_ptr<PeerStream> stream, WorkerRank peer) = 0;
  };

  /// Both must outlive the door, which is destroyed only once the transport has stopped. `log` may
  /// be empty.
  PeerDoor(Transport* transport, RefusalCounts* refusals, RefusalLog log = {});
  ~PeerDoor() override;

  /// Without a host, streams are asked to come again later.
  void open(Host* host) { host_ = host; }
  /// Does nothing when another host has come meanwhile.
  void shut(Host* host) {
    if (host_ == host) host_ = nullptr;
  }

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override;
  /// Of a message that is not used, here or by the host.
  void count_refusal(const PeerStream& stream, const Objection& objection);

 private:
  void on_message(PeerStream& stream, const Bytes& message) override;
  void on_written(PeerStream& /*stream*/) override {}
  void on_closed(PeerStream& stream, const absl::Status& status) override;
  void close_if_still_here(std::uint64_t number);

  Transport* const transport_;
  RefusalCounts* const refusals_;
  const RefusalLog log_;
  Host* host_ = nullptr;
  struct Unbound {
    std::uint64_t number = 0;
    std::unique_ptr<PeerStream> stream;
  };
  std::vector<Unbound> unbound_;
  std::uint64_t next_number_ = 0;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
