#include "common/security/seal.h"

#include <gcrypt.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

constexpr std::size_t kKeyBytes = 16;
constexpr std::size_t kNonceBytes = 12;

constexpr std::size_t kBlockBytes = 16;
constexpr int kCipher = GCRY_CIPHER_AES128;
constexpr int kMode = GCRY_CIPHER_MODE_OCB;

/// Once for the process, before anything else of libgcrypt's; another library may have done it.
absl::Status start_libgcrypt() {
  if (gcry_check_version(GCRYPT_VERSION) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("libgcrypt ", gcry_check_version(nullptr),
                                                      " is older than the one that this was built "
                                                      "with, ",
                                                      GCRYPT_VERSION, ": install that"));
  }
  if (gcry_control(GCRYCTL_INITIALIZATION_FINISHED_P) == 0) {
    gcry_control(GCRYCTL_DISABLE_SECMEM, 0);  // keys lie where the tensors lie
    gcry_control(GCRYCTL_INITIALIZATION_FINISHED, 0);
  }
  gcry_cipher_hd_t cipher = nullptr;
  if (const gcry_error_t error = gcry_cipher_open(&cipher, kCipher, kMode, 0); error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("libgcrypt does not encrypt by AES-128-OCB here: ", gcry_strerror(error)));
  }
  gcry_cipher_close(cipher);
  return absl::OkStatus();
}
const absl::Status& libgcrypt() {
  static const absl::Status started = start_libgcrypt();
  return started;
}

/// Of calls that cannot fail once libgcrypt() is well and their arguments are.
void must(gcry_error_t error) { POSEIDON_CHECK(error == 0, gcry_strerror(error)); }

/// Brings a record in pieces of any length to a cipher that takes whole blocks until the last.
class Blocks {
 public:
  using Crypt = gcry_error_t (*)(gcry_cipher_hd_t cipher, void* to, std::size_t to_bytes,
                                 const void* from, std::size_t from_bytes);
  Blocks(gcry_cipher_hd_t cipher, Crypt crypt, std::byte* to)
      : cipher_(cipher), crypt_(crypt), to_(to) {}

  void add(absl::Span<const std::byte> piece) {
    if (begun_bytes_ > 0) {
      const std::size_t here = std::min(piece.size(), kBlockBytes - begun_bytes_);
      begin_block(piece.first(here));
      piece.remove_prefix(here);
      if (begun_bytes_ < kBlockBytes) return;
      pass({begun_.data(), std::exchange(begun_bytes_, 0)});
    }
    const std::size_t whole = piece.size() / kBlockBytes * kBlockBytes;
    if (whole > 0) pass(piece.first(whole));
    begin_block(piece.subspan(whole));
  }
  /// Returns where the record ends.
  std::byte* finish() {
    must(gcry_cipher_final(cipher_));
    pass({begun_.data(), begun_bytes_});
    return to_;
  }

 private:
  void begin_block(absl::Span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(),
              begun_.begin() + static_cast<std::ptrdiff_t>(begun_bytes_));
    begun_bytes_ += bytes.size();
  }
  void pass(absl::Span<const std::byte> bytes) {
    must(crypt_(cipher_, to_, bytes.size(), bytes.data(), bytes.size()));
    to_ += bytes.size();
  }

  const gcry_cipher_hd_t cipher_;
  const Crypt crypt_;
  std::byte* to_;
  std::array<std::byte, kBlockBytes> begun_{};
  std::size_t begun_bytes_ = 0;
};

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

absl::Status check_sealing() { return libgcrypt(); }

void fill_with_secret_bytes(absl::Span<std::byte> bytes) {
  POSEIDON_CHECK(::RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()),
                              static_cast<int>(bytes.size())) == 1,
                 "the system has random bytes");
}

struct SealKeys::State {
  State(const SealSecret& first, std::uint64_t limit) : secret(first), bytes_per_key(limit) {
    POSEIDON_CHECK(libgcrypt().ok(), "check_sealing() was asked before");
    must(gcry_cipher_open(&cipher, kCipher, kMode, 0));
    begin_key();
  }
  ~State() { forget(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void forget() {
    secret = {};
    forget_secret(first_nonce.data(), first_nonce.size());
    gcry_cipher_close(std::exchange(cipher, nullptr));  // which overwrites the key
  }

  void begin_key() {
    const SealSecret derived = expand(secret, "poseidon seal key");
    must(gcry_cipher_setkey(cipher, derived.data(), kKeyBytes));
    std::copy_n(derived.begin() + kKeyBytes, kNonceBytes, first_nonce.begin());
    records = 0;
    bytes = 0;
  }

  void begin_record(absl::Span<const std::byte> header) {
    std::array<std::byte, kNonceBytes> nonce = first_nonce;
    for (std::size_t i = 0; i < sizeof(records); ++i) {
      nonce[kNonceBytes - 1 - i] ^= static_cast<std::byte>(records >> (8 * i));
    }
    ++records;
    must(gcry_cipher_setiv(cipher, nonce.data(), nonce.size()));
    must(gcry_cipher_authenticate(cipher, header.data(), header.size()));
  }

  /// Both ends count the same.
  void end_record(std::uint64_t text_bytes) {
    bytes += text_bytes + kSealTagBytes;  // so that empty ones count, too
    if (bytes < bytes_per_key) return;
    secret = expand(secret, "poseidon seal next");
    begin_key();
  }

  gcry_cipher_hd_t cipher = nullptr;
  SealSecret secret;
  std::array<std::byte, kNonceBytes> first_nonce{};
  std::uint64_t records = 0;  ///< under this key
  std::uint64_t bytes = 0;    ///< under this key
  const std::uint64_t bytes_per_key;
  bool is_broken = false;  ///< something did not open
};

SealKeys::SealKeys(const SealSecret& secret, std::uint64_t bytes_per_key)
    : state_(std::make_unique<State>(secret, bytes_per_key)) {}
SealKeys::~SealKeys() = default;
SealKeys::SealKeys(SealKeys&&) noexcept = default;

void Sealer::seal(absl::Span<const std::byte> header,
                  absl::Span<const absl::Span<const std::byte>> text, std::byte* sealed) {
  State& state = *state_;
  state.begin_record(header);
  Blocks blocks(state.cipher, gcry_cipher_encrypt, sealed);
  for (const absl::Span<const std::byte> piece : text) blocks.add(piece);
  std::byte* const tag = blocks.finish();
  must(gcry_cipher_gettag(state.cipher, tag, kSealTagBytes));
  state.end_record(static_cast<std::uint64_t>(tag - sealed));
}

bool Opener::open(absl::Span<const std::byte> header,
                  absl::Span<const absl::Span<const std::byte>> sealed, std::byte* text) {
  State& state = *state_;
  std::size_t left = 0;
  for (const absl::Span<const std::byte> piece : sealed) left += piece.size();
  if (state.is_broken) return false;
  // Whoever may try again and again with one key learns something (RFC 8446, 5.5).
  state.is_broken = true;
  if (left < kSealTagBytes) return false;
  left -= kSealTagBytes;
  const std::uint64_t bytes = left;
  state.begin_record(header);
  std::array<std::byte, kSealTagBytes> tag{};
  std::size_t tag_bytes = 0;
  Blocks blocks(state.cipher, gcry_cipher_decrypt, text);
  for (absl::Span<const std::byte> piece : sealed) {
    const std::size_t here = std::min(left, piece.size());
    blocks.add(piece.first(here));
    left -= here;
    piece.remove_prefix(here);
    std::copy(piece.begin(), piece.end(), tag.begin() + static_cast<std::ptrdiff_t>(tag_bytes));
    tag_bytes += piece.size();
  }
  blocks.finish();
  if (gcry_cipher_checktag(state.cipher, tag.data(), tag.size()) != 0) {
    state.forget();
    return false;
  }
  state.is_broken = false;
  state.end_record(bytes);
  return true;
}

}  // namespace poseidon
