#pragma once

// A file descriptor with an owner.
//
// Called by: all code that opens files or sockets. Calls: the system.

#include <unistd.h>

#include <utility>

namespace poseidon {

/// Owns a file descriptor, a socket or none (below 0); closes it on every way out. Not for
/// concurrent use.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// Gives the descriptor, and the duty to close it, to the caller.
  int release() { return std::exchange(fd_, -1); }
  /// Returns false, with errno set, when the close failed; writers must check it.
  bool close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_ = -1;
};

}  // namespace poseidon
