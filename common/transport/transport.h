#pragma once

// The transport seam: bidirectional streams of messages, one event loop.
//
// Called by: routes, shards, relays and stores, which decide what to send. Calls: an
// implementation, which moves bytes over sockets (common/grpc/grpc_transport.h) or through queues
// of one process (memory_transport.h, the twin, driven by a seed).
//
// Concurrency contract
//  1. Every Transport has one loop. All events (StreamHandler, Acceptor, posted functions, timers)
//     run on it, one at a time, so code on the loop needs no locks.
//  2. `post` may be called from any thread. Everything else is called on the loop only.
//  3. A stream delivers messages in order and whole, or closes. It has ended only when the other
//     side has sent its end; a connection that ends in another way is a broken stream, UNAVAILABLE.
//     So is one that has received nothing, not even a keepalive, for the keepalive's interval and
//     timeout together. After on_closed, or once the Stream object is destroyed, its handler gets
//     no more events.
//  4. Bounds: one message being written per stream (the caller keeps the queue, and so the order),
//     one message being read; while reads are paused, the sender is held back by flow control.
//  5. No call delivers an event before it returns. A handler may destroy any stream, its own
//     included, in any event.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"

namespace poseidon {

/// Read-only bytes in a few pieces; `owner` keeps all of them alive. Copying it copies no bytes.
struct Bytes {
  absl::InlinedVector<absl::Span<const std::byte>, 4> pieces;
  std::shared_ptr<const void> owner;

  std::size_t size() const {
    std::size_t total = 0;
    for (const auto& piece : pieces) total += piece.size();
    return total;
  }
};

/// A contiguous copy; for small messages.
inline std::string joined(const Bytes& bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const auto& piece : bytes.pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return text;
}

/// The encoded front of a message. What a data message needs, stream header included, fits without
/// allocation.
class MessagePrefix {
 public:
  MessagePrefix() = default;
  MessagePrefix(std::string_view text) { append(text); }    // NOLINT: prefixes are text
  MessagePrefix(const std::string& text) { append(text); }  // NOLINT
  MessagePrefix(const char* text) { append(text); }         // NOLINT

  void append(std::string_view text) { bytes_.insert(bytes_.end(), text.begin(), text.end()); }
  void push_back(char byte) { bytes_.push_back(byte); }
  std::string_view view() const { return {bytes_.data(), bytes_.size()}; }
  std::string str() const { return std::string(view()); }
  std::size_t size() const { return bytes_.size(); }

 private:
  absl::InlinedVector<char, 256> bytes_;
};

/// A message to send: a small encoded prefix (copied) and a payload (referred to, never copied).
struct OutgoingMessage {
  MessagePrefix prefix;
  absl::Span<const std::byte> payload;
  std::shared_ptr<const void> payload_owner;  ///< released once the transport needs it no more
};

/// Whether the handler of a message wants the next one.
enum class ReadNext {
  kContinue,  ///< deliver the next message
  kPause,     ///< deliver none until Stream::resume_reads: back-pressure reaches the sender
};

/// Events of one stream, on the loop.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  /// A whole message. `message` may be kept (it owns its memory).
  virtual ReadNext on_message(Bytes message) = 0;
  /// The transport accepted the last write; the next may follow.
  virtual void on_written() = 0;
  /// Last event. OK: the other side ended cleanly. UNAVAILABLE: cut, or never connected; written
  /// messages may or may not have arrived. Any other code is the other side's refusal, with its
  /// reason.
  virtual void on_closed(const absl::Status& status) = 0;
};

/// One end of a stream. Destroying it closes the stream at once, without an event.
class Stream {
 public:
  virtual ~Stream() = default;
  /// At most one write at a time: the next only after on_written. Never blocks.
  virtual void write(OutgoingMessage message) = 0;
  /// Undoes ReadNext::kPause; harmless otherwise.
  virtual void resume_reads() = 0;
  /// Ends the stream after all written messages; the other side gets `status` as the reason.
  virtual void close(const absl::Status& status) = 0;
  /// For messages: "10.0.0.3:4711".
  virtual std::string peer() const = 0;
  /// For a stream opened here that has received from the peer: the address at which another
  /// connection reaches the same machine, without a name lookup.
  virtual std::string reached() const { return peer(); }
};

/// Called for every stream that another node opens. The handler lives until its on_closed or until
/// the owner of `stream` destroys it; the Acceptor's implementation owns it.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  virtual StreamHandler* on_accept(std::unique_ptr<Stream> stream) = 0;
};

/// Where events happen.
class Loop {
 public:
  virtual ~Loop() = default;
  /// Any thread. Runs `function` on the loop, after everything posted before it.
  virtual void post(std::function<void()> function) = 0;
  /// On the loop. Runs `function` after `delay`; not at all once the loop has stopped.
  virtual void post_after(Nanoseconds delay, std::function<void()> function) = 0;
  virtual Nanoseconds now() const = 0;
};

class Transport : public Loop {
 public:
  /// Starts to connect; the stream can be written to at once. Failure arrives as on_closed.
  /// `handler` must outlive the returned stream.
  virtual std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) = 0;
  /// Accepts streams on `address` (HOST:PORT, port 0: any). Returns the address in force.
  /// ALREADY_EXISTS when the port is taken. `acceptor` must outlive the transport. Once only.
  virtual absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) = 0;
};

}  // namespace poseidon
