#include "common/security/seal.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace poseidon::seal_test {
namespace {

using Buffer = std::vector<std::byte>;
const Buffer kHeader{std::byte{3}, std::byte{0}, std::byte{200}, std::byte{1}, std::byte{9}};

SealSecret secret_of(std::uint8_t seed) {
  SealSecret secret;
  for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(seed + 7 * i);
  return secret;
}

Buffer random_bytes(std::size_t size, std::uint64_t seed) {
  SplitMix64 random(seed);
  Buffer bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

Buffer seal(Sealer& sealer, const Buffer& text, const Buffer& header = kHeader) {
  Buffer sealed(text.size() + kSealTagBytes);
  const absl::Span<const std::byte> whole(text);
  sealer.seal(header, {&whole, 1}, sealed.data());
  return sealed;
}

/// "" for what does not open.
std::optional<Buffer> open(Opener& opener, const Buffer& sealed, const Buffer& header = kHeader) {
  Buffer text(sealed.size() < kSealTagBytes ? 0 : sealed.size() - kSealTagBytes);
  const absl::Span<const std::byte> whole(sealed);
  if (!opener.open(header, {&whole, 1}, text.data())) return std::nullopt;
  return text;
}

// ---- the same by OpenSSL, from the RFCs ----

template <typename Type, void (*free)(Type*)>
struct Freed {
  void operator()(Type* object) const { free(object); }
};

Buffer expand(const SealSecret& secret, std::string_view label) {
  const std::unique_ptr<EVP_KDF, Freed<EVP_KDF, EVP_KDF_free>> kdf(
      ::EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const std::unique_ptr<EVP_KDF_CTX, Freed<EVP_KDF_CTX, EVP_KDF_CTX_free>> context(
      ::EVP_KDF_CTX_new(kdf.get()));
  int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
  std::string digest = "SHA256", info(label);
  SealSecret key = secret;
  const OSSL_PARAM parameters[] = {
      ::OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
      ::OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      ::OSSL_PARAM_construct_end()};
  Buffer derived(32);
  EXPECT_EQ(::EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(derived.data()),
                             derived.size(), parameters),
            1);
  return derived;
}

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

Buffer seal_by_openssl(const SealSecret& secret, std::uint64_t message, const Buffer& text) {
  const Buffer derived = expand(secret, "poseidon seal key");
  Buffer nonce(derived.begin() + 16, derived.begin() + 28);
  for (std::size_t i = 0; i < 8; ++i) {
    nonce[11 - i] ^= static_cast<std::byte>(message >> (8 * i));
  }
  const std::unique_ptr<EVP_CIPHER_CTX, Freed<EVP_CIPHER_CTX, EVP_CIPHER_CTX_free>> context(
      ::EVP_CIPHER_CTX_new());
  Buffer sealed(text.size() + kSealTagBytes);
  int size = 0;
  EXPECT_EQ(::EVP_EncryptInit_ex2(context.get(), ::EVP_aes_128_ocb(), raw(derived.data()),
                                  raw(nonce.data()), nullptr),
            1);
  EXPECT_EQ(::EVP_EncryptUpdate(context.get(), nullptr, &size, raw(kHeader.data()),
                                static_cast<int>(kHeader.size())),
            1);
  auto* out = reinterpret_cast<unsigned char*>(sealed.data());
  EXPECT_EQ(::EVP_EncryptUpdate(context.get(), out, &size, raw(text.data()),
                                static_cast<int>(text.size())),
            1);
  EXPECT_EQ(::EVP_EncryptFinal_ex(context.get(), out + size, &size), 1);  // a last short block
  EXPECT_EQ(
      ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kSealTagBytes, out + text.size()),
      1);
  return sealed;
}

SealSecret next_of(const SealSecret& secret) {
  const Buffer derived = expand(secret, "poseidon seal next");
  SealSecret next;
  std::copy(derived.begin(), derived.end(), next.begin());
  return next;
}

TEST(Seal, IsAesOcbWithKeysOfHkdfAsOpenSslMakesThem) {
  const SealSecret secret = secret_of(1);
  Sealer sealer(secret);
  std::uint64_t message = 0;
  for (const std::size_t size : {0UL, 1UL, 15UL, 16UL, 17UL, 100UL, 255UL, 256UL, 257UL, 767UL,
                                 768UL, 769UL, 4096UL, 100003UL}) {
    const Buffer text = random_bytes(size, size);
    EXPECT_EQ(seal(sealer, text), seal_by_openssl(secret, message++, text)) << size;
  }
}

TEST(Seal, OpensWhatWasSealedInAnyPieces) {
  SplitMix64 random(5);
  Sealer sealer(secret_of(2));
  Opener opener(secret_of(2));
  for (int round = 0; round < 300; ++round) {
    const Buffer text = random_bytes(random.next() % 3000, round);
    const auto pieces_of = [&random](const Buffer& bytes) {
      std::vector<absl::Span<const std::byte>> pieces;
      absl::Span<const std::byte> rest(bytes);
      while (!rest.empty() || random.next() % 4 == 0) {
        const std::size_t here = std::min<std::size_t>(random.next() % 700, rest.size());
        pieces.push_back(rest.first(here));
        rest.remove_prefix(here);
      }
      return pieces;
    };
    Buffer sealed(text.size() + kSealTagBytes);
    sealer.seal(kHeader, pieces_of(text), sealed.data());
    ASSERT_EQ(sealed, seal_by_openssl(secret_of(2), static_cast<std::uint64_t>(round), text))
        << round;
    Buffer opened(text.size());
    ASSERT_TRUE(opener.open(kHeader, pieces_of(sealed), opened.data())) << round;
    ASSERT_EQ(opened, text) << round;
  }
}

TEST(Seal, AnyOtherBitDoesNotOpen) {
  const Buffer text = random_bytes(40, 1);
  Sealer sealer(secret_of(3));
  const Buffer sealed = seal(sealer, text);
  for (std::size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    Buffer changed = sealed;
    changed[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    Opener opener(secret_of(3));
    EXPECT_FALSE(open(opener, changed)) << bit;
  }
  for (std::size_t size = 0; size < sealed.size(); ++size) {
    Opener opener(secret_of(3));
    EXPECT_FALSE(open(opener, Buffer(sealed.begin(), sealed.begin() + size))) << size;
  }
  Opener right(secret_of(3)), other(secret_of(4)), elsewhere(secret_of(3));
  EXPECT_EQ(open(right, sealed), text);
  EXPECT_FALSE(open(other, sealed));
  Buffer header = kHeader;
  header.back() ^= std::byte{1};
  EXPECT_FALSE(open(elsewhere, sealed, header));
}

TEST(Seal, EachOpensOnceAndInItsPlace) {
  Sealer sealer(secret_of(5));
  const Buffer first = seal(sealer, random_bytes(10, 1)),
               second = seal(sealer, random_bytes(10, 2));
  {
    Opener skips(secret_of(5));
    EXPECT_FALSE(open(skips, second));
  }
  Opener repeats(secret_of(5));
  EXPECT_TRUE(open(repeats, first));
  EXPECT_FALSE(open(repeats, first));
}

TEST(Seal, NothingOpensAfterSomethingThatDidNot) {
  Sealer sealer(secret_of(5));
  const Buffer first = seal(sealer, random_bytes(10, 1)),
               second = seal(sealer, random_bytes(10, 2));
  Buffer changed = first;
  changed[3] ^= std::byte{1};
  Opener opener(secret_of(5));
  EXPECT_FALSE(open(opener, changed));
  EXPECT_FALSE(open(opener, second)) << "which is the next one, unchanged";
  EXPECT_FALSE(open(opener, first));
  Opener cut(secret_of(5));
  EXPECT_FALSE(open(cut, Buffer(3)));
  EXPECT_FALSE(open(cut, first));
}

TEST(Seal, TheNextKeyComesAfterSoManyBytes) {
  constexpr std::uint64_t kLimit = 300;
  SealSecret secret = secret_of(6);
  Sealer sealer(secret, kLimit);
  Opener opener(secret, kLimit);
  std::uint64_t bytes = 0, message = 0;
  int keys = 1;
  for (int i = 0; i < 100; ++i) {
    const Buffer text = random_bytes(1 + i, i);
    const Buffer sealed = seal(sealer, text);
    ASSERT_EQ(sealed, seal_by_openssl(secret, message++, text)) << i;
    ASSERT_EQ(open(opener, sealed), text) << i;
    bytes += text.size() + kSealTagBytes;
    if (bytes >= kLimit) {
      secret = next_of(secret);
      bytes = message = 0;
      ++keys;
    }
  }
  EXPECT_GT(keys, 15);
}

TEST(Seal, EmptyMessagesAreSealedToo) {
  Sealer sealer(secret_of(7));
  Opener opener(secret_of(7));
  const Buffer one = seal(sealer, {}), two = seal(sealer, {});
  EXPECT_NE(one, two);
  EXPECT_TRUE(open(opener, one));
  EXPECT_TRUE(open(opener, two));
}

TEST(Seal, SecretsAreNeverTheSame) {
  SealSecret one{}, two{};
  fill_with_secret_bytes(absl::MakeSpan(one));
  fill_with_secret_bytes(absl::MakeSpan(two));
  EXPECT_NE(one, two);
  EXPECT_NE(one, SealSecret{});
  EXPECT_TRUE(check_sealing().ok()) << check_sealing();
}

}  // namespace
}  // namespace poseidon::seal_test
