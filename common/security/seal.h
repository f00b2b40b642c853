#pragma once

// Authenticated encryption of what goes one way of a stream: AES-128-OCB (RFC 7253), record by
// record.
//
// Before: two ends have agreed on a secret for each direction (common/grpc/sealed_transport.h).
// After: common/grpc/sealed_pipe.h sends the records. Only who has the secret can read them, and
// nothing but the records that were sealed, each once and in their order, can be opened.
//
// Nonces are counted, not sent, so what is lost, repeated or exchanged does not open. After
// kMaxBytesPerKey both ends go on with the next key, derived from the secret as TLS 1.3 does in a
// key update (RFC 8446, 7.2); the secret before is forgotten.
//
// Why OCB, and not GCM as TLS has it: beside AES it costs next to nothing, while GCM's
// authentication costs more than AES does where AES is fast. By libgcrypt, which uses VAES where
// the processor has it (bench/RESULTS.md).

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace poseidon {

/// What a sealed record is longer than its text.
inline constexpr std::size_t kSealTagBytes = 16;
/// 2^34 blocks: far below the 2^44 after which OCB wants another key (RFC 7253, 5). What somebody
/// gains by having seen so many is about 2^-53: 6 x blocks^2 / 2^128, tags and nonces included.
inline constexpr std::uint64_t kMaxBytesPerKey = std::uint64_t{1} << 38;

/// Overwrites what nobody shall find in memory later.
void forget_secret(void* bytes, std::size_t size);

/// From a cryptographic random source, known to both ends of one direction of one stream, used for
/// nothing else. Forgotten with the object.
struct SealSecret : std::array<std::byte, 32> {
  SealSecret() : std::array<std::byte, 32>{} {}
  SealSecret(const SealSecret&) = default;
  SealSecret& operator=(const SealSecret&) = default;
  ~SealSecret() { forget_secret(data(), size()); }
};

/// Whether this machine can seal; FAILED_PRECONDITION says why not. What follows needs it.
absl::Status check_sealing();

/// Fills with random bytes that nobody can predict.
void fill_with_secret_bytes(absl::Span<std::byte> bytes);

/// One key after the other, and the nonces used with it. Not for concurrent use.
class SealKeys {
 public:
  explicit SealKeys(const SealSecret& secret, std::uint64_t bytes_per_key = kMaxBytesPerKey);
  ~SealKeys();
  SealKeys(SealKeys&&) noexcept;
  SealKeys& operator=(SealKeys&&) noexcept = delete;

 protected:
  struct State;
  std::unique_ptr<State> state_;
};

/// The end that sends.
class Sealer : public SealKeys {
 public:
  using SealKeys::SealKeys;
  /// Encrypts `text`, in pieces, to `sealed`, which has room for it and kSealTagBytes more, and
  /// overlaps none of them. `header` is not encrypted, but the record opens only under the same.
  void seal(absl::Span<const std::byte> header, absl::Span<const absl::Span<const std::byte>> text,
            std::byte* sealed);
};

/// The end that receives.
class Opener : public SealKeys {
 public:
  using SealKeys::SealKeys;
  /// Decrypts `sealed`, in pieces, to `text`, which has room for all of it but the tag. False when
  /// it is not what the other end sealed next, under this header: then `text` means nothing, and
  /// nothing opens ever after.
  [[nodiscard]] bool open(absl::Span<const std::byte> header,
                          absl::Span<const absl::Span<const std::byte>> sealed, std::byte* text);
};

}  // namespace poseidon
