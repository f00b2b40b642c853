#pragma once

// Sealed streams on sockets. On the loop's thread, which waits here: it seals and sends, receives,
// opens and hands on, with no other thread in between.
//
// Before: common/security/connection_door.h has let in a socket whose caller showed a ticket, or
// connect_with_ticket() has made one; a stream has a message. After: the network; at the other end
// the same in the opposite order. What is said on a socket is common/grpc/sealed_pipe.h's matter.
//
// Why not gRPC: it sends and hands on whole messages, so what is encrypted of a large one leaves
// the caches before the socket copies it. Here a record is sent while it is warm, and opened
// likewise. And nothing between the door and the seal parses what a stranger sends, but eight
// bytes.
//
// Bounds: of each stream a message is being sent and one is being received; while its user reads
// nothing, nothing is read, and the other end is held back. An end that says nothing else says
// every second that it is well; one that has heard nothing for the keepalive's interval and timeout
// together cuts the stream, but not while its own user reads nothing. An end is answered by one,
// and only that is an end by both; who does neither answer nor take a byte nor say that it is well
// has Keepalive::end, everybody else ten minutes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/grpc/sealed_transport.h"

namespace poseidon {

/// When somebody is taken for dead.
struct Keepalive {
  Milliseconds interval{10000};  ///< who has said nothing for so long,
  Milliseconds timeout{10000};   ///< and for so long after that
  /// Who, once our end is said, takes no byte and says nothing for so long.
  Milliseconds end{10000};
};

/// Loop only, but for wake().
class SealedSockets {
 public:
  /// Hears of what nobody could have sent who has the secret.
  using Broken = std::function<void(const std::string& peer, const std::string& what)>;

  SealedSockets(std::size_t max_message_bytes, Broken broken);
  /// As stop(). Streams may outlive it.
  ~SealedSockets();

  /// `socket` is connected and nonblocking.
  std::unique_ptr<SealedConnection> adopt(Descriptor socket, Keepalive keepalive);
  /// Waits for something to do, `patience` at most, and does it: streams have their events here.
  void poll(Nanoseconds patience);
  /// Any thread: ends the waiting of the poll() that runs, or of the next.
  void wake();
  /// Closes all connections. No stream has an event after it.
  void stop();

 private:
  class Connection;
  class Handle;
  class Wire;

  std::shared_ptr<Wire> open(Descriptor socket, Keepalive keepalive, const SealEnds& secrets);
  void stir(const std::shared_ptr<Wire>& wire);
  void settle(Wire& wire);
  void look_at_clocks();

  const std::size_t max_message_bytes_;
  const Broken broken_;
  const SystemClock clock_;
  const Descriptor epoll_, event_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Wire>> wires_;
  std::uint64_t next_id_ = 1;
  std::vector<std::shared_ptr<Wire>> stirred_;  ///< have something to do
  Nanoseconds looked_{0};
  bool is_stopped_ = false;
};

}  // namespace poseidon
