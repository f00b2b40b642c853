#pragma once

// A transport whose streams keep little under way, and leave payloads where they are when both ends
// run on one machine.
//
// Wraps another transport, which carries everything: the messages, their order, the end of a stream
// and its reason, and the peer's death. So nothing of the contract in transport.h changes, and a
// stream to an end that is not ours (a stock gRPC client) falls back to plain messages by itself.
//
// Before: routes, shards and relays write a message. After: the transport below
// (common/grpc/grpc_transport.h, with TLS by common/grpc/sealed_transport.h) carries it.
//
// How two ends agree (proto/poseidon/v1/stream.proto)
//  1. The connecting end sends an offer: where its arena is, if it has one. It holds its messages
//     back until the answer.
//  2. The accepting end tries to map the arena, and answers with whether it could and where its own
//     is.
//  3. From then on every message has a StreamHeader in front, which tells the other end's progress;
//     a payload that lies in the sender's arena, and that the other end can read, stays there and
//     is told by offset and size.
// An end that begins with a plain message gets plain messages.
//
// Pace. The sender is told that a message is written (on_written) only while what the peer's
// handler has not taken yet is less than the stream's window. A transport by itself would swallow
// many megabytes into socket buffers: then urgent chunks wait behind them, and memory that was warm
// when it was written is cold when it is read (measured: bench/RESULTS.md). The streams of
// a transport go out through one link, so they share a window: a stream's is kWindowBytes, and less
// where more streams are under way. It is the taking that counts, not the answer, so no two streams
// can wait for each other; and two messages may always go, so none waits for another's share. The
// sender asks for progress when half of its window is under way, and hears of it with the next
// message the other way, or by itself.
//
// That news waits behind what its end has under way. With windows of one size at both ends a stream
// cannot carry more one way than it carries the other: a worker that is behind the others, and so
// sends when they have nothing to send, was sent its parameters no faster than its gradients left,
// and stayed behind for ever. So a server's window is twice a worker's. Between workers both ends
// have the same: whoever had more was served before the others, always (measured:
// bench/RESULTS.md).
//
// Shared memory. A payload is read in place, so its owner must not change it before the reader has
// let it go. The reader says so in a later header (`released`); until then the sender holds
// OutgoingMessage::payload_owner. A stream that ends releases all: what the peer still holds of a
// dead stream keeps its memory but not its meaning.
//
// Bounds: a paused end holds at most what the window lets through.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/tensor/shared_arena.h"
#include "common/transport/transport.h"
#include "common/transport/windows.h"

namespace poseidon {

/// Under way in one direction of a stream, at most: two chunks of the largest size that is chosen
/// by itself keep both ends busy. At 100 Gbit/s it is 0.3 ms of the wire, above the round trip of
/// any local network.
inline constexpr std::uint64_t kWindowBytes = 4 << 20;
/// However small they are.
inline constexpr std::uint64_t kWindowMessages = 64;

/// What a transport may have under way on all of its streams together. Loop only, but for resize.
class SharedWindow {
 public:
  explicit SharedWindow(std::int64_t bytes) { resize(bytes); }
  void resize(std::int64_t bytes) { bytes_ = static_cast<std::uint64_t>(bytes); }
  /// Of each stream that is under way.
  std::uint64_t share() const {
    return std::min(kWindowBytes, bytes_.load(std::memory_order_relaxed) /
                                      std::max<std::uint64_t>(1, busy_streams_));
  }
  void begin_stream() { ++busy_streams_; }
  void end_stream() { --busy_streams_; }

 private:
  std::atomic<std::uint64_t> bytes_;
  std::uint64_t busy_streams_ = 0;  ///< have messages under way
};

/// Payload bytes that this process sent to ends of ours.
struct PacedTraffic {
  std::atomic<std::uint64_t> shared_bytes{0};  ///< read by the peer in place
  std::atomic<std::uint64_t> sent_bytes{0};    ///< through the transport below
};

class PacedTransport final : public Transport {
 public:
  /// `inner` and `arena` must outlive it, and it its streams. `arena` is what this process sends
  /// from; null: it shares no memory, and reads nobody's. `window_bytes` > 0: what its streams may
  /// have under way together (common/transport/windows.h).
  PacedTransport(Transport* inner, SharedArena* arena,
                 std::int64_t window_bytes = kWorkerWindowBytes);
  ~PacedTransport() override;

  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override;
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override;
  void post(std::function<void()> function) override { inner_->post(std::move(function)); }
  void post_after(Nanoseconds delay, std::function<void()> function) override {
    inner_->post_after(delay, std::move(function));
  }
  Nanoseconds now() const override { return inner_->now(); }

  /// From any thread; `bytes` > 0. What is under way stays so, and a stream that waits may go on
  /// with the next news of what was taken.
  void set_window(std::int64_t bytes) { window_.resize(bytes); }

  const PacedTraffic& traffic() const { return traffic_; }

 private:
  class Wrapper;
  Transport* const inner_;
  SharedArena* const arena_;
  SharedWindow window_;
  PacedTraffic traffic_;
  std::unique_ptr<Wrapper> wrapper_;
};

}  // namespace poseidon
