#include "common/files/sha256.h"

#include <array>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace poseidon::sha256_test {
namespace {

// The examples of FIPS 180.
TEST(Sha256Test, IsThePublicOne) {
  EXPECT_EQ(absl::BytesToHexString(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(absl::BytesToHexString(sha256("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256Test, PiecesGiveTheDigestOfTheWhole) {
  const std::array<std::string_view, 3> pieces = {"a", "", "bc"};
  EXPECT_EQ(sha256(pieces), sha256("abc"));
  Sha256 hash;
  hash.add("ab");
  EXPECT_EQ(hash.digest(), sha256("ab"));
  hash.add("c");
  EXPECT_EQ(hash.digest(), sha256("abc")) << "asking ends nothing";
}

}  // namespace
}  // namespace poseidon::sha256_test
