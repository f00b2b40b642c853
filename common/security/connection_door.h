#pragma once

// Listens in gRPC's place and passes connections to it, up to a limit. gRPC 1.51 has no limit: when
// a flood of connections has used up the process's file descriptors, it stops listening
// permanently.
//
// With TLS the same port takes streams of our own (common/grpc/tls_sockets.h) beside gRPC's: the
// first bytes of a connection say which it is, and the door waits for them.
//
// Called by: common/security/security.h for gRPC's port, common/pages/http_server.h for a page's.
// Calls: gRPC, the HTTP server or common/grpc/tls_sockets.h, which own a connection from then on.

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace poseidon {

struct DoorLimits {
  /// Connections at a time; fewer where the process may not open so many files.
  std::size_t connections = 8192;
  /// Connections of one address at a time.
  std::size_t per_address = 4096;
  /// The last so many connections, a quarter at most, are for addresses that have one open already:
  /// a node that is part of a job can always report its end, however many others try to come in.
  std::size_t kept_for_known = 64;
  /// For the first bytes of a connection, where they are waited for.
  Milliseconds greeting{10000};
};

/// The first bytes of a connection that carries one stream in TLS; a TLS handshake follows. Neither
/// a TLS handshake nor HTTP/2 begins with a zero. Not secret and not trusted: the protocol is also
/// agreed on within the handshake (ALPN).
inline constexpr std::array<char, 8> kGreeting{'\0', 's', 't', 'r', 'e', 'a', 'm', '\n'};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};
enum class LookUp : std::uint8_t {
  kNumbersOnly,  ///< does not block; UNAVAILABLE for a name
  kNames         ///< may block for as long as the system's resolver does
};
/// The addresses of HOST:PORT, in the order in which they are to be tried; one at least.
/// INVALID_ARGUMENT when it is not HOST:PORT.
absl::StatusOr<std::vector<SocketAddress>> look_up_address(const std::string& address,
                                                           LookUp look_up);
/// A nonblocking socket that is being connected; closed when that fails at once (errno).
Descriptor begin_to_connect(const SocketAddress& address);

/// A separate thread accepts, from start() until destruction.
class ConnectionDoor {
 public:
  /// Gets an open socket, nonblocking, to own.
  using Take = std::function<void(int socket)>;
  enum class Refusal : std::uint8_t {
    kTooMany,    ///< the connection was one too many
    kNoGreeting  ///< it began with a zero, but not with kGreeting, or sent nothing at all
  };
  /// Hears of each connection that was not taken, by its address ("10.0.0.3").
  using Refuse = std::function<void(const std::string& peer, Refusal refusal)>;
  /// `address` is HOST:PORT; every address of HOST is listened on, port 0 takes any that is free.
  /// ALREADY_EXISTS when the port is taken, otherwise the system's error.
  static absl::StatusOr<std::unique_ptr<ConnectionDoor>> open(const std::string& address,
                                                              DoorLimits limits = {});
  ~ConnectionDoor();
  ConnectionDoor(const ConnectionDoor&) = delete;
  ConnectionDoor& operator=(const ConnectionDoor&) = delete;

  int port() const { return port_; }
  /// Once. All are called on the door's thread. `take_stream`: gets the connections that begin with
  /// kGreeting, which is read. Without it every connection is passed on at once; with it, when its
  /// first byte has arrived.
  void start(Take take, Refuse refuse, Take take_stream = nullptr);

 private:
  /// A socket that was passed on; its descriptor's inode shows whether it is still open.
  struct Open {
    std::size_t inode = 0;
    std::string peer;
  };
  /// A connection whose first byte has not arrived yet.
  struct Arriving {
    int socket = -1;
    std::string peer;
    Nanoseconds deadline{0};
    std::size_t heard = 0;  ///< bytes of its greeting
    std::array<char, kGreeting.size()> greeting{};
  };
  explicit ConnectionDoor(DoorLimits limits) : limits_(limits) {}
  void run();
  void accept_some(int listener);
  bool hear(Arriving& arriving);
  void turn_away(const Arriving& arriving);
  bool has_room(const std::string& peer);
  void forget_closed();
  void count_out(const std::string& peer);

  DoorLimits limits_;
  std::vector<Descriptor> listeners_;
  Descriptor wake_;  ///< eventfd: the destructor ends the thread with it
  int port_ = 0;
  Take take_;
  Refuse refuse_;
  Take take_stream_;
  // The thread's.
  const SystemClock clock_;
  std::list<Arriving> arriving_;  ///< the oldest first
  Nanoseconds looked_{0};
  std::unordered_map<int, Open> open_;
  std::unordered_map<std::string, std::size_t> of_peer_;
  std::thread thread_;
};

}  // namespace poseidon
