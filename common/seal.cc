#include "common/seal.h"

#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace poseidon {
namespace {

constexpr std::size_t kKeyBytes = 16;
constexpr std::size_t kNonceBytes = 12;

/// Function pointers for this processor, unchanging once they are made; and what was wrong.
struct Instructions {
  IMB_MGR* manager = nullptr;
  absl::Status status;
};
const Instructions& instructions_of_processor() {
  static const Instructions found = [] {
    Instructions made{.manager = alloc_mb_mgr(0), .status = {}};
    POSEIDON_CHECK(made.manager != nullptr, "memory for libipsec-mb");
    init_mb_mgr_auto(made.manager, nullptr);
    if (const int error = imb_get_errno(made.manager); error != 0) {
      made.status = absl::FailedPreconditionError(
          absl::StrCat("libipsec-mb does not work on this processor: ", imb_get_strerror(error)));
    }
    return made;
  }();
  return found;
}
IMB_MGR* instructions() { return instructions_of_processor().manager; }

/// HKDF-Expand (RFC 5869, 2.3) for up to one hash: the first block.
SealSecret expand(const SealSecret& secret, std::string_view label) {
  SealSecret derived;
  unsigned size = 0;
  std::array<unsigned char, 64> text{};
  POSEIDON_CHECK(label.size() < text.size(), "labels are short");
  std::copy(label.begin(), label.end(), text.begin());
  text[label.size()] = 1;
  const unsigned char* made =
      ::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text.data(),
             label.size() + 1, reinterpret_cast<unsigned char*>(derived.data()), &size);
  POSEIDON_CHECK(made != nullptr && size == derived.size(), "SHA-256 has 32 bytes");
  return derived;
}

}  // namespace

void forget_secret(void* bytes, std::size_t size) { ::OPENSSL_cleanse(bytes, size); }

absl::Status check_sealing() { return instructions_of_processor().status; }

void fill_with_secret_bytes(absl::Span<std::byte> bytes) {
  POSEIDON_CHECK(::RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()),
                              static_cast<int>(bytes.size())) == 1,
                 "the system has random bytes");
}

struct SealKeys::State {
  State(const SealSecret& first, std::uint64_t limit) : secret(first), bytes_per_key(limit) {
    begin_key();
  }
  ~State() { forget(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void forget() {
    secret = {};
    forget_secret(first_nonce.data(), first_nonce.size());
    forget_secret(&key, sizeof(key));
    forget_secret(&context, sizeof(context));
  }

  void begin_key() {
    const SealSecret derived = expand(secret, "poseidon seal key");
    IMB_AES128_GCM_PRE(instructions(), derived.data(), &key);
    std::copy_n(derived.begin() + kKeyBytes, kNonceBytes, first_nonce.begin());
    messages = 0;
    bytes = 0;
  }

  void begin_message(std::byte kind) {
    std::array<std::byte, kNonceBytes> nonce = first_nonce;
    for (std::size_t i = 0; i < sizeof(messages); ++i) {
      nonce[kNonceBytes - 1 - i] ^= static_cast<std::byte>(messages >> (8 * i));
    }
    ++messages;
    IMB_AES128_GCM_INIT(instructions(), &key, &context,
                        reinterpret_cast<const std::uint8_t*>(nonce.data()),
                        reinterpret_cast<const std::uint8_t*>(&kind), sizeof(kind));
  }

  /// Both ends count the same.
  void end_message(std::uint64_t message_bytes) {
    bytes += message_bytes + kSealTagBytes;  // so that empty ones count, too
    if (bytes < bytes_per_key) return;
    secret = expand(secret, "poseidon seal next");
    begin_key();
  }

  alignas(64) gcm_key_data key;
  alignas(64) gcm_context_data context;
  SealSecret secret;
  std::array<std::byte, kNonceBytes> first_nonce{};
  std::uint64_t messages = 0;  ///< under this key
  std::uint64_t bytes = 0;     ///< under this key
  const std::uint64_t bytes_per_key;
  bool is_broken = false;  ///< something did not open
};

SealKeys::SealKeys(const SealSecret& secret, std::uint64_t bytes_per_key)
    : state_(std::make_unique<State>(secret, bytes_per_key)) {}
SealKeys::~SealKeys() = default;
SealKeys::SealKeys(SealKeys&&) noexcept = default;

void Sealer::seal(std::byte kind, absl::Span<const absl::Span<const std::byte>> text,
                  std::byte* sealed) {
  State& state = *state_;
  state.begin_message(kind);
  std::uint64_t bytes = 0;
  for (const absl::Span<const std::byte> piece : text) {
    if (piece.empty()) continue;
    IMB_AES128_GCM_ENC_UPDATE(instructions(), &state.key, &state.context,
                              reinterpret_cast<std::uint8_t*>(sealed + bytes),
                              reinterpret_cast<const std::uint8_t*>(piece.data()), piece.size());
    bytes += piece.size();
  }
  IMB_AES128_GCM_ENC_FINALIZE(instructions(), &state.key, &state.context,
                              reinterpret_cast<std::uint8_t*>(sealed + bytes), kSealTagBytes);
  state.end_message(bytes);
}

bool Opener::open(std::byte kind, absl::Span<const absl::Span<const std::byte>> sealed,
                  std::byte* text) {
  State& state = *state_;
  std::size_t left = 0;
  for (const absl::Span<const std::byte> piece : sealed) left += piece.size();
  if (state.is_broken) return false;
  // Whoever may try again and again with one key learns something (RFC 8446, 5.5).
  state.is_broken = true;
  if (left < kSealTagBytes) return false;
  left -= kSealTagBytes;
  const std::uint64_t bytes = left;
  state.begin_message(kind);
  std::array<std::byte, kSealTagBytes> told{};
  std::array<std::byte, kSealTagBytes> right{};
  std::size_t tag_bytes = 0;
  for (absl::Span<const std::byte> piece : sealed) {
    const std::size_t here = std::min(left, piece.size());
    if (here > 0) {
      IMB_AES128_GCM_DEC_UPDATE(instructions(), &state.key, &state.context,
                                reinterpret_cast<std::uint8_t*>(text),
                                reinterpret_cast<const std::uint8_t*>(piece.data()), here);
      text += here;
      left -= here;
      piece.remove_prefix(here);
    }
    std::copy(piece.begin(), piece.end(), told.begin() + static_cast<std::ptrdiff_t>(tag_bytes));
    tag_bytes += piece.size();
  }
  IMB_AES128_GCM_DEC_FINALIZE(instructions(), &state.key, &state.context,
                              reinterpret_cast<std::uint8_t*>(right.data()), right.size());
  if (::CRYPTO_memcmp(told.data(), right.data(), right.size()) != 0) {
    state.forget();
    return false;
  }
  state.is_broken = false;
  state.end_message(bytes);
  return true;
}

}  // namespace poseidon
