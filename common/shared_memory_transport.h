#pragma once

// A transport that leaves payloads where they are when both ends of a stream run on one machine.
//
// Wraps another transport, which carries everything else: the messages' heads, their order, the
// end of a stream and its reason, and the peer's death. So nothing of the contract in transport.h
// changes, and a stream falls back to plain messages by itself.
//
// How two ends agree (frames: proto/poseidon/v1/shared_memory.proto)
//  1. The connecting end sends where its arena is, and holds its messages back until the answer.
//  2. The accepting end tries to map it, and answers with whether it could and where its own is.
//  3. Could both, every message is a frame from then on: the head inline, a payload that lies in
//     the sender's arena as offset and size. Otherwise the stream goes on in plain messages.
// An end that begins with a plain message (a stock gRPC client) gets plain messages.
//
// A payload in shared memory is read in place, so its owner must not change it before the reader
// has let it go. The reader says so in its next frame (`released`); until then the sender holds
// OutgoingMessage::payload_owner. A stream that ends releases all: what the peer still holds of a
// dead stream keeps its memory but not its meaning.
//
// Bounds: the sender is told that a message is written (on_written) once the peer has taken all but
// kWindow messages; a paused end holds at most kWindow heads.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/shared_arena.h"
#include "common/transport.h"

namespace poseidon {

/// Messages under way in one direction of a stream: two keep both ends busy while the first is
/// read, and urgent ones wait for no more than that.
inline constexpr std::uint64_t kSharedMemoryWindow = 2;

/// Payload bytes that this process sent on streams that agreed on shared memory.
struct SharedMemoryTraffic {
  std::atomic<std::uint64_t> shared_bytes{0};  ///< read by the peer in place
  std::atomic<std::uint64_t> inline_bytes{0};  ///< copied into frames: small, or outside the arena
};

class SharedMemoryTransport final : public Transport {
 public:
  /// Both must outlive it. `arena` is what this process sends from; without one all is plain.
  SharedMemoryTransport(Transport* inner, SharedArena* arena);
  ~SharedMemoryTransport() override;

  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override;
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override;
  void post(std::function<void()> function) override { inner_->post(std::move(function)); }
  void post_after(Nanoseconds delay, std::function<void()> function) override {
    inner_->post_after(delay, std::move(function));
  }
  Nanoseconds now() const override { return inner_->now(); }

  const SharedMemoryTraffic& traffic() const { return traffic_; }

 private:
  class Wrapper;
  Transport* const inner_;
  SharedArena* const arena_;
  SharedMemoryTraffic traffic_;
  std::unique_ptr<Wrapper> wrapper_;
};

}  // namespace poseidon
