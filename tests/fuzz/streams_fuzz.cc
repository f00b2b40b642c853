// The ports of the data path, each behind the transport that the daemons have, and peers that send
// arbitrary messages: a server's shard, a server's store, a worker's port for factors, the relay of
// a group of workers (the peers also answer as its servers), and any node's port for network
// measurements.
//
// The first byte chooses the port, the second the kind of job. Then each step begins with a byte
// that chooses what happens; most take some more. Peers speak as ours do (offer, answer, one header
// in front of each message), as a stock client does, or say bytes of the input.

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/transport/memory_transport.h"
#include "common/transport/paced_transport.h"
#include "common/transport/stream_header.h"
#include "poseidon/v1/stream.pb.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/ports/factor_port.h"
#include "tests/fuzz/ports/probe_port.h"
#include "tests/fuzz/ports/relay_port.h"
#include "tests/fuzz/ports/shard_port.h"
#include "tests/fuzz/ports/store_port.h"

namespace poseidon::fuzz {
namespace {

constexpr int kMaxSteps = 300;
constexpr std::size_t kPeers = 3;

/// Of this process, which plays both ends.
SharedArena* arena() {
  static const std::unique_ptr<SharedArena> kArena = *SharedArena::create(1 << 16);
  return kArena.get();
}

/// Where payloads are that stay in their sender's memory.
std::span<std::byte> shared_payloads() {
  constexpr std::size_t kBytes = 4096;
  static std::byte* const kMemory = static_cast<std::byte*>(arena()->allocate(kBytes));
  return {kMemory, kBytes};
}

OutgoingMessage message_of(MessagePrefix prefix, std::string_view payload = "") {
  prefix.append(payload);
  return {.prefix = std::move(prefix), .payload = {}, .payload_owner = nullptr};
}

/// One stream of a peer, by the plain transport or by one of ours.
class Peer final : public StreamHandler {
 public:
  void open(std::unique_ptr<Stream> stream) {
    stream_ = std::move(stream);
    waiting_.clear();
    kept_.reset();
    writing_ = closing_ = false;
  }
  void say(OutgoingMessage message) {
    if (stream_ == nullptr || closing_ || waiting_.size() >= 64) return;
    waiting_.push_back(std::move(message));
    pump();
  }
  void close() {
    if (stream_ == nullptr || closing_) return;
    closing_ = true;
    waiting_.clear();
    if (!writing_) stream_->close(absl::OkStatus());
  }
  void cut() { stream_.reset(); }
  bool is_open() const { return stream_ != nullptr; }

  ReadNext on_message(Bytes message) override {
    kept_ = std::move(message);  // until the next one
    return ReadNext::kContinue;
  }
  void on_written() override {
    writing_ = false;
    if (closing_) {
      stream_->close(absl::OkStatus());
    } else {
      pump();
    }
  }
  void on_closed(const absl::Status& /*status*/) override { stream_.reset(); }

 private:
  void pump() {
    if (writing_ || waiting_.empty()) return;
    writing_ = true;
    OutgoingMessage next = std::move(waiting_.front());
    waiting_.pop_front();
    stream_->write(std::move(next));
  }

  std::unique_ptr<Stream> stream_;
  std::deque<OutgoingMessage> waiting_;
  std::optional<Bytes> kept_;
  bool writing_ = false, closing_ = false;
};

class Session final : public Acceptor {
 public:
  Session(const std::uint8_t* data, std::size_t size)
      : input_(data, size),
        network_(/*seed=*/1, MemoryFaults{}),
        ours_(&network_.endpoint("victim"), arena(), /*window_bytes=*/4096),
        paced_(&network_.endpoint("peer"), arena(), /*window_bytes=*/4096) {
    const std::uint8_t which = input_.byte();
    const std::uint8_t job = input_.byte();
    Transport& from =
        which / 3 % 2 == 0 ? static_cast<Transport&>(paced_) : network_.endpoint("peer");
    POSEIDON_CHECK(from.listen("peer", this).ok(), "a free address");
    if (which >= 128) {
      port_ = std::make_unique<RelayPort>(&ours_, job);
    } else if (which >= 96) {
      port_ = std::make_unique<ProbePort>(&ours_);
    } else if (which % 3 == 0) {
      port_ = std::make_unique<ShardPort>(&ours_, job);
    } else if (which % 3 == 1) {
      port_ = std::make_unique<StorePort>(&ours_);
    } else {
      port_ = std::make_unique<FactorPort>(&ours_, job);
    }
    pass(Milliseconds(3));
  }

  void run() {
    for (int i = 0; i < kMaxSteps && !input_.rest().empty(); ++i) {
      step();
      pass(Milliseconds(3));
      port_->check();
    }
  }

  /// The victim's own stream, to the worker after it or, of a relay, to its server.
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    peers_[kPeers].open(std::move(stream));
    return &peers_[kPeers];
  }

 private:
  void step() {
    const std::uint8_t what = input_.byte();
    Peer& peer = peers_[what / 16 % peers_.size()];
    switch (what % 16) {
      case 0:
        if (&peer != &peers_[kPeers]) {
          peer.open(paced_.connect("victim", &peer));
          port_->stream_opened();
        }
        break;
      case 1:
        if (&peer != &peers_[kPeers]) {
          peer.open(network_.endpoint("peer").connect("victim", &peer));
          port_->stream_opened();
        }
        break;
      case 2:
        peer.close();
        break;
      case 3:
        peer.cut();
        break;
      case 4:
        port_->act(input_.byte());
        break;
      case 5:
        peer.say(raw());
        break;
      case 6:
        peer.say(offer());
        break;
      case 7:
        peer.say(headed());
        break;
      case 8:
        // Deadlines pass, and lost peers are reconnected.
        pass(Milliseconds(250) * input_.byte());
        break;
      default:
        peer.say(believable());
        break;
    }
  }

  OutgoingMessage believable() {
    const Words words = port_->believable(input_);
    return message_of(words.prefix, words.payload);
  }

  OutgoingMessage raw() {
    const std::string bytes(input_.rest().substr(0, input_.byte()));
    for (std::size_t i = 0; i < bytes.size(); ++i) input_.byte();
    return message_of(MessagePrefix(bytes));
  }

  /// As a stream of ours begins: of memory that is there, or of some that is not.
  OutgoingMessage offer() {
    const std::uint8_t how = input_.byte();
    const ArenaAddress address = arena()->address();
    v1::StreamHeader header;
    v1::SharedMemoryOffer& offered = *header.mutable_offer();
    offered.set_machine(address.machine);
    offered.set_process_id(how % 8 == 1 ? 1 : address.process_id);
    offered.set_file_descriptor(how % 8 == 2 ? how / 8 : address.file_descriptor);
    offered.set_nonce_low(address.nonce_low);
    offered.set_nonce_high(address.nonce_high + (how % 8 == 3 ? 1 : 0));
    offered.set_bytes(how % 8 == 4 ? address.bytes * 2 : how % 8 == 5 ? 0 : address.bytes);
    header.set_accepted(how < 128);
    return message_of(MessagePrefix(header.SerializeAsString()));
  }

  /// With a header in front as ours have it, whose numbers are the input's.
  OutgoingMessage headed() {
    const std::uint8_t how = input_.byte();
    StreamHeader header;
    const auto number = [this] {
      const std::uint8_t byte = input_.byte();
      return byte < 250 ? std::uint64_t{byte} : std::numeric_limits<std::uint64_t>::max() - byte;
    };
    header.accepted = how % 2 == 1;
    header.asks = how / 2 % 2 == 1;
    if (how / 4 % 2 == 1) header.delivered = number();
    header.released_count = how / 8 % 4;
    for (std::size_t i = 0; i < header.released_count; ++i) header.released[i] = number();
    Words words;
    if (how < 128) words = port_->believable(input_);
    if (how / 32 % 2 == 1) {  // it stays in memory, or so we say
      const std::span<std::byte> memory = shared_payloads().first(words.payload.size());
      std::ranges::copy(std::as_bytes(std::span(words.payload)), memory.begin());
      header.payload_offset = *arena()->offset_of(memory) + number() * 512;
      header.payload_bytes = words.payload.size() + number();
      words.payload.clear();
    }
    MessagePrefix prefix;
    append_stream_header(header, prefix);
    prefix.append(words.prefix.view());
    return message_of(std::move(prefix), words.payload);
  }

  void pass(Nanoseconds time) {
    bool over = false;
    network_.endpoint("peer").post_after(time, [&over] { over = true; });
    // Bounded: what a stream does again and again takes time.
    for (int i = 0; i < 100000 && !over; ++i) {
      POSEIDON_CHECK(network_.step(), "the end of the time is to come");
    }
    POSEIDON_CHECK(over, "time passes");
  }

  Input input_;
  std::array<Peer, kPeers + 1> peers_;  ///< the last one is found by the victim
  MemoryNetwork network_;
  PacedTransport ours_, paced_;
  std::unique_ptr<Port> port_;
};

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // It logs every text that is no UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  poseidon::fuzz::Session(data, size).run();
  return 0;
}
