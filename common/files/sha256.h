#pragma once

// SHA-256 of bytes that come in pieces (OpenSSL's).
//
// Called by: the sender and the receiver of a trained model. Calls: OpenSSL.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace poseidon {

inline constexpr std::size_t kSha256Bytes = 32;

/// One thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::string_view bytes);
  /// kSha256Bytes raw bytes, of all that was added; more may follow.
  std::string digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of the pieces one after the other.
std::string sha256(std::span<const std::string_view> pieces);
std::string sha256(std::string_view bytes);

}  // namespace poseidon
