#pragma once

// Streams on TLS connections of their own: the transport of tensors where there is TLS. On the
// loop's thread, which waits here for the sockets: it encrypts and sends, receives, decrypts and
// delivers, with no other thread in between.
//
// Called by: common/grpc/grpc_transport.cc opens streams, and gives the connections that its port
// took for them (common/security/connection_door.h). Calls: common/security/tls_session.h moves
// bytes, common/grpc/tls_frames.h encodes and decodes frames, common/security/security.h checks
// certificates and roles.
//
// A connection: the caller sends kGreeting in plain text, both do the TLS handshake (TLS 1.3,
// certificates of both ends, ALPN "poseidon-stream/1"), the caller's first frame names a method and
// a join token, and the server checks it like a gRPC call. One stream per connection.
//
// Why not gRPC: it sends and delivers whole messages, so the encrypted bytes of a large one leave
// the caches before the socket copies them. It takes three times the CPU of plain sockets.
//
// End of a stream (common/transport/transport.h has the rule): an end is a frame with a status,
// which the other end answers by one. Everything else that ends a connection is a cut. Keepalive:
// an end that sends nothing else sends a keepalive frame at least every second. An end that has
// received nothing for the keepalive's interval and timeout together cuts the stream, except while
// its own user does not read. Bounds: of each stream one message is being sent and one is being
// received. While its user does not read, nothing is read, which holds the other end back. Until
// the handshake is done, a stranger can use some 50 KiB of memory for the time `handshake`. The
// wait for the answer to an end is limited by Keepalive::end, and by ten minutes.

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/security/connection_door.h"
#include "common/security/security.h"
#include "common/security/tls_session.h"
#include "common/threads/mutex.h"
#include "common/transport/background.h"
#include "common/transport/transport.h"

namespace poseidon {

/// Times after which the other end counts as dead.
struct Keepalive {
  Milliseconds interval{10000};  ///< silence of this length,
  Milliseconds timeout{10000};   ///< and this much longer
  /// After our end of stream: it takes no byte and sends nothing for this long.
  Milliseconds end{10000};
};

struct TlsSocketOptions {
  std::size_t max_message_bytes = 0;
  /// Time from a connection's arrival to its opening frame, and from the TCP connection to the end
  /// of the handshake.
  Milliseconds handshake{10000};
  /// Time for the TCP connection, including the lookup of names.
  Milliseconds connect{5000};
};

/// Loop only, but for wake().
class TlsSockets {
 public:
  /// The acceptor for the method of a caller with a valid certificate, or the reason why there is
  /// none.
  using Admit = std::function<absl::StatusOr<Acceptor*>(const MethodCaller& caller)>;

  /// `security` has TLS.
  TlsSockets(std::shared_ptr<Security> security, TlsSocketOptions options, Admit admit);
  /// As stop(). Streams may outlive it.
  ~TlsSockets();

  /// As Transport::connect, for one method.
  std::unique_ptr<Stream> connect(const std::string& method, const std::string& address,
                                  Keepalive keepalive, StreamHandler* handler);
  /// Takes a connection whose kGreeting has been read. Its stream goes to the acceptor of its
  /// method.
  void accept(Descriptor socket, Keepalive keepalive);
  /// Waits for events for at most `patience`, and handles them: streams get their events here.
  void poll(Nanoseconds patience);
  /// Any thread: ends the waiting of the poll() that runs, or of the next.
  void wake();
  /// Closes all connections. No stream has an event after it.
  void stop();

 private:
  class Handle;
  class Wire;
  using Addresses = absl::StatusOr<std::vector<SocketAddress>>;

  std::shared_ptr<Wire> add(std::shared_ptr<Wire> wire);
  void look_up(const std::string& address, std::uint64_t wire);
  void take_looked_up();
  void schedule(const std::shared_ptr<Wire>& wire);
  void settle(Wire& wire);
  void look_at_clocks();

  const std::shared_ptr<Security> security_;
  const TlsSocketOptions options_;
  const Admit admit_;
  const std::shared_ptr<const TlsContext> calls_, answers_;
  const SystemClock clock_;
  const Descriptor epoll_, event_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Wire>> wires_;
  std::uint64_t next_id_ = 1;
  std::vector<std::shared_ptr<Wire>> stirred_;  ///< have something to do
  Nanoseconds looked_{0};
  bool is_stopped_ = false;

  Mutex mutex_;
  std::vector<std::pair<std::uint64_t, Addresses>> looked_up_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<BackgroundThread> resolver_;  ///< from the first name on; uses all above
};

}  // namespace poseidon
