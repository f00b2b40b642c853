#pragma once

// A stream to or from another worker, and the door that accepts other workers' streams.
//
// Called by: common/transport/transport.h, for each stream that it accepts on the worker's port.
// Calls: sync/client/factor_exchange.h of the current epoch, which owns a stream once HELLO has
// named its worker.
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

/// Streams without HELLO at a time; more are refused.
inline constexpr std::size_t kMaxUnboundPeerStreams = 256;

/// A stream without a valid HELLO by then is closed, to free its place.
inline constexpr Milliseconds kHelloTimeout{30000};

/// The side that opened a stream: it decides how the other side is told of a refusal.
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
  std::unique_ptr<Stream> stream_;  ///< destroyed first: no event comes after that
};

/// The worker's listening end. It lives as long as the process; each job opens and shuts it.
class PeerDoor final : public Acceptor, public PeerStream::Owner {
 public:
  /// The job behind the door.
  class Host {
   public:
    virtual ~Host() = default;
    /// Whether to accept a stream with this first message: OK, or the status to close it with.
    /// ABORTED asks the other side to try again later. The host counts its refusals with
    /// count_refusal.
    virtual absl::Status admit(const PeerStream& stream, const FactorHeader& hello,
                               std::size_t payload_bytes) = 0;
    /// Gives the stream to the host.
    virtual void adopt(std::unique_ptr<PeerStream> stream, WorkerRank peer) = 0;
  };

  /// `transport` and `refusals` must outlive the door, which is destroyed only once the transport
  /// has stopped. `log` may be empty.
  PeerDoor(Transport* transport, RefusalCounts* refusals, RefusalLog log = {});
  ~PeerDoor() override;

  /// Without a host, streams are refused with ABORTED: try again later.
  void open(Host* host) { host_ = host; }
  /// Does nothing when another host has opened the door since.
  void shut(Host* host) {
    if (host_ == host) host_ = nullptr;
  }

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override;
  /// Counts a refused message, of the door or the host.
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
  /// Timers in the loop outlive this object; they check this flag before they touch it.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
