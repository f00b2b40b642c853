#pragma once

// Listens in gRPC's place and hands it the connections, as many as there may be. gRPC 1.51 bounds
// nothing here: when a flood of connections has used up the process's file descriptors, it stops to
// listen for good.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/descriptor.h"

namespace poseidon {

struct DoorLimits {
  /// Connections at a time; fewer where the process may not open so many files.
  std::size_t connections = 8192;
  /// Of them those of one address.
  std::size_t per_address = 4096;
};

/// A thread of its own accepts, from start() until destruction.
class ConnectionDoor {
 public:
  /// Gets an open socket, nonblocking, to own.
  using Take = std::function<void(int socket)>;
  /// Hears of each connection that was one too many, by its address ("10.0.0.3").
  using Refuse = std::function<void(const std::string& peer)>;

  /// `address` is HOST:PORT; every address of HOST is listened on, port 0 takes any that is free.
  /// ALREADY_EXISTS when the port is taken, otherwise what the system says.
  static absl::StatusOr<std::unique_ptr<ConnectionDoor>> open(const std::string& address,
                                                              DoorLimits limits = {});
  ~ConnectionDoor();
  ConnectionDoor(const ConnectionDoor&) = delete;
  ConnectionDoor& operator=(const ConnectionDoor&) = delete;

  int port() const { return port_; }
  /// Once. Both are called on the door's thread.
  void start(Take take, Refuse refuse);

 private:
  /// A socket that was handed over; whether it is still open is seen from the descriptor's inode.
  struct Open {
    std::size_t inode = 0;
    std::string peer;
  };
  explicit ConnectionDoor(DoorLimits limits) : limits_(limits) {}
  void run();
  void accept_all(int listener);
  bool has_room(const std::string& peer);
  void forget_closed();
  void count_out(const std::string& peer);

  DoorLimits limits_;
  std::vector<Descriptor> listeners_;
  Descriptor wake_;  ///< eventfd: the destructor ends the thread with it
  int port_ = 0;
  Take take_;
  Refuse refuse_;
  // The thread's.
  const SystemClock clock_;
  Nanoseconds looked_{0};
  std::unordered_map<int, Open> open_;
  std::unordered_map<std::string, std::size_t> of_peer_;
  std::thread thread_;
};

}  // namespace poseidon
