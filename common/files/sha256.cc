#include "common/files/sha256.h"

#include <openssl/evp.h>

#include "common/base/check.h"

namespace poseidon {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

Context new_context() {
  Context context(EVP_MD_CTX_new());
  POSEIDON_CHECK(context != nullptr, "memory for a digest");
  return context;
}

}  // namespace

struct Sha256::State {
  Context context = new_context();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  POSEIDON_CHECK(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) == 1,
                 "OpenSSL has SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::add(std::string_view bytes) {
  POSEIDON_CHECK(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1,
                 "a digest takes any bytes");
}

std::string Sha256::digest() const {
  const Context copy = new_context();  // finishing one ends it
  unsigned char bytes[kSha256Bytes];
  POSEIDON_CHECK(EVP_MD_CTX_copy_ex(copy.get(), state_->context.get()) == 1 &&
                     EVP_DigestFinal_ex(copy.get(), bytes, nullptr) == 1,
                 "a digest ends");
  return {reinterpret_cast<const char*>(bytes), kSha256Bytes};
}

std::string sha256(std::span<const std::string_view> pieces) {
  Sha256 hash;
  for (const std::string_view piece : pieces) hash.add(piece);
  return hash.digest();
}

std::string sha256(std::string_view bytes) {
  return sha256(std::span<const std::string_view>(&bytes, 1));
}

}  // namespace poseidon
