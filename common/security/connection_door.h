#pragma once

// Listens in gRPC's place and hands it the connections, as many as there may be. gRPC 1.51 bounds
// nothing here: when a flood of connections has used up the process's file descriptors, it stops to
// listen for good.
//
// Where there are tickets (common/security/ticket_book.h), a connection may come in by one instead
// of by a TLS handshake: its first bytes say which, and the door waits for them.
//
// Before: the socket of a port (common/security/security.h opens gRPC's, common/pages/http_server.h
// a page's). After: gRPC, the HTTP server or, with a ticket, common/grpc/sealed_sockets.h owns the
// connection.

#include <array>
#include <atomic>
#include <cstddef>
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
#include "common/security/ticket_book.h"

namespace poseidon {

struct DoorLimits {
  /// Connections at a time; fewer where the process may not open so many files.
  std::size_t connections = 8192;
  /// Of them those of one address.
  std::size_t per_address = 4096;
  /// For the first bytes of a connection, where they are waited for.
  Milliseconds greeting{10000};
};

/// What a connection says first that comes in by a ticket, and the ticket after it. No TLS
/// handshake begins with a zero, nor does HTTP/2.
inline constexpr std::array<char, 8> kGreeting{'\0', 's', 'e', 'a', 'l', '/', '1', '\n'};
inline constexpr std::size_t kGreetingBytes = kGreeting.size() + sizeof(Ticket);

/// A connection to `address` that has shown the ticket. HOST is a number: no names are looked up.
/// Blocks for `patience` at most, and not much longer than until `stops`, which another thread may
/// set. UNAVAILABLE when nobody answers.
absl::StatusOr<Descriptor> connect_with_ticket(const std::string& address, const Ticket& ticket,
                                               Milliseconds patience,
                                               const std::atomic<bool>& stops);

/// A thread of its own accepts, from start() until destruction.
class ConnectionDoor {
 public:
  /// Gets an open socket, nonblocking, to own.
  using Take = std::function<void(int socket)>;
  enum class Refusal : std::uint8_t {
    kTooMany,    ///< the connection was one too many
    kNoGreeting  ///< it has shown no ticket that is good, or said nothing at all
  };
  /// Hears of each connection that was not taken, by its address ("10.0.0.3").
  using Refuse = std::function<void(const std::string& peer, Refusal refusal)>;
  /// `address` is HOST:PORT; every address of HOST is listened on, port 0 takes any that is free.
  /// ALREADY_EXISTS when the port is taken, otherwise what the system says.
  static absl::StatusOr<std::unique_ptr<ConnectionDoor>> open(const std::string& address,
                                                              DoorLimits limits = {});
  ~ConnectionDoor();
  ConnectionDoor(const ConnectionDoor&) = delete;
  ConnectionDoor& operator=(const ConnectionDoor&) = delete;

  int port() const { return port_; }
  /// Once. All are called on the door's thread. Without an entrance for tickets every connection is
  /// taken at once; with one, as soon as its first byte is here.
  void start(Take take, Refuse refuse, TicketEntrance entrance = nullptr);

 private:
  /// A socket that was handed over; whether it is still open is seen from the descriptor's inode.
  struct Open {
    std::size_t inode = 0;
    std::string peer;
  };
  /// A connection that has not said yet how it comes in.
  struct Arriving {
    int socket = -1;
    std::string peer;
    Nanoseconds deadline{0};
    std::size_t heard = 0;  ///< bytes of its greeting
    std::array<std::byte, kGreetingBytes> greeting{};
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
  TicketEntrance entrance_;
  // The thread's.
  const SystemClock clock_;
  std::list<Arriving> arriving_;  ///< the oldest first
  Nanoseconds looked_{0};
  std::unordered_map<int, Open> open_;
  std::unordered_map<std::string, std::size_t> of_peer_;
  std::thread thread_;
};

}  // namespace poseidon
