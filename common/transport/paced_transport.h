#pragma once

// A transport whose streams keep few bytes in flight, and that passes payloads through shared
// memory when both ends run on one machine.
//
// It wraps another transport, which carries everything: the messages, their order, the end of a
// stream and its reason, and the peer's death. So the contract of transport.h is unchanged, and a
// stream to a foreign peer (a stock gRPC client) falls back to plain messages.
//
// Called by: routes, shards and relays, which write messages. Calls: the transport below
// (common/grpc/grpc_transport.h, with TLS common/grpc/tls_sockets.h).
//
// How two ends negotiate (proto/poseidon/v1/stream.proto)
//  1. The connecting end sends an offer: where its arena is, if it has one. It holds its messages
//     back until it gets the answer.
//  2. The accepting end tries to map the arena, and answers with whether it could and where its own
//     is.
//  3. From then on every message has a StreamHeader in front, which tells the other end's progress;
//     a payload that lies in the sender's arena, and that the other end can read, stays there and
//     is told by offset and size.
// An end that begins with a plain message gets plain messages.
//
// Pace. The sender gets on_written only while the peer's handler has less than the stream's window
// still to take. An unpaced transport would put many megabytes into socket buffers: urgent chunks
// would wait behind them, and data that was in the cache when written would be out of it when read
// (measured: bench/RESULTS.md). The streams of a transport share one link, so they share a window:
// a stream's part is kWindowBytes, or less when more streams are busy. A message counts as taken
// when the handler receives it, not when it answers, so streams cannot deadlock. Two messages may
// always be in flight, so no stream waits for another's part. The sender asks for progress when
// half of its window is in flight. The peer reports it with its next message, or in a message of
// its own.
//
// A progress report waits behind what its sender has in flight. With equal windows at both ends a
// stream cannot carry more in one direction than in the other: a worker that was behind received
// its parameters no faster than its gradients left, and never caught up. So a server's window is
// twice a worker's. Between workers both windows are equal, because a worker with a larger one was
// always served first (measured: bench/RESULTS.md).
//
// Shared memory. A payload is read in place, so its owner must not change it before the reader
// releases it. The reader reports that in a later header (`released`); until then the sender holds
// OutgoingMessage::payload_owner. The end of a stream releases all: what the peer still holds of a
// dead stream stays mapped, but its content may change.
//
// Bounds: a paused end holds at most one window.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/memory/shared_arena.h"
#include "common/transport/transport.h"
#include "common/transport/windows.h"

namespace poseidon {

/// Most bytes in flight in one direction of a stream. Two chunks of the largest automatic size keep
/// both ends busy. At 100 Gbit/s it is 0.3 ms of the wire, above the round trip of any local
/// network.
inline constexpr std::uint64_t kWindowBytes = 4 << 20;
/// Most messages in flight, however small.
inline constexpr std::uint64_t kWindowMessages = 64;

/// The bytes that a transport may have in flight on all of its streams together. Loop only, except
/// resize.
class SharedWindow {
 public:
  explicit SharedWindow(std::int64_t bytes) { resize(bytes); }
  void resize(std::int64_t bytes) { bytes_ = static_cast<std::uint64_t>(bytes); }
  /// The part of each busy stream.
  std::uint64_t share() const {
    return std::min(kWindowBytes, bytes_.load(std::memory_order_relaxed) /
                                      std::max<std::uint64_t>(1, busy_streams_));
  }
  void begin_stream() { ++busy_streams_; }
  void end_stream() { --busy_streams_; }

 private:
  std::atomic<std::uint64_t> bytes_;
  std::uint64_t busy_streams_ = 0;  ///< streams with messages in flight
};

/// Payload bytes that this process sent to Poseidon peers.
struct PacedTraffic {
  std::atomic<std::uint64_t> shared_bytes{0};  ///< read by the peer in place
  std::atomic<std::uint64_t> sent_bytes{0};    ///< through the transport below
};

class PacedTransport final : public Transport {
 public:
  /// `inner` and `arena` must outlive it, and it must outlive its streams. `arena` holds what this
  /// process sends; null: no shared memory in either direction. `window_bytes` > 0: limit of the
  /// bytes in flight on all of its streams together (common/transport/windows.h).
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

  /// From any thread; `bytes` > 0. Messages in flight are not affected; a waiting stream may
  /// continue at the next progress report.
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
