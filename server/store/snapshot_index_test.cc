#include "server/store/snapshot_index.h"

#include <cstring>

#include "gtest/gtest.h"

namespace poseidon::snapshot_index_test {
namespace {

SnapshotIndex index() {
  return {{PieceId(0), {.version = 40, .first = 1, .elements = {12, 12, 0}}},
          {PieceId(3), {.version = 41, .first = 3, .elements = {7, 7, 7}}},
          {PieceId(900), {.version = 40, .first = 6, .elements = {0, 0, 0}}}};
}

/// The word of one entry (piece and first array, version, three sizes) with another value.
std::string changed(std::size_t entry, std::size_t word, std::uint64_t value) {
  std::string bytes = encode_index(index());
  std::memcpy(bytes.data() + 40 * entry + 8 * word, &value, sizeof value);
  return bytes;
}

TEST(SnapshotIndex, WhatWasWrittenIsRead) {
  EXPECT_EQ(decode_index(encode_index(index())), index());
  EXPECT_EQ(decode_index(""), SnapshotIndex());
  EXPECT_EQ(decode_index(changed(1, 1, 42))->at(PieceId(3)).version, 42);
}

TEST(SnapshotIndex, WhatNobodyWroteIsNoIndex) {
  const std::string bytes = encode_index(index());
  for (std::size_t cut = 1; cut < 40; ++cut) {
    EXPECT_FALSE(decode_index(bytes.substr(0, bytes.size() - cut))) << cut;
  }
  EXPECT_FALSE(decode_index(changed(2, 0, 3))) << "a piece twice";
  EXPECT_FALSE(decode_index(changed(2, 0, 1))) << "out of order";
  for (const std::size_t word : {2, 3, 4}) {
    // Times four bytes it would be 4 and 2^63.
    EXPECT_FALSE(decode_index(changed(0, word, (std::uint64_t{1} << 62) + 1)));
    EXPECT_FALSE(decode_index(changed(0, word, std::uint64_t{1} << 61)));
    EXPECT_TRUE(decode_index(changed(0, word, (std::uint64_t{1} << 61) - 1)));
  }
}

TEST(ArrayKeys, AreInTheOrderOfSnapshotsAndNumbers) {
  const ArrayKey first{SnapshotId(0x00ff), 0xffffffff}, second{SnapshotId(0x0100), kIndexNumber},
      third{SnapshotId(0x0100), 0x0102};
  EXPECT_LT(encode_key(first), encode_key(second));
  EXPECT_LT(encode_key(second), encode_key(third));
  const auto read = decode_key(encode_key(third));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->snapshot, third.snapshot);
  EXPECT_EQ(read->number, third.number);
  EXPECT_FALSE(decode_key(encode_key(third).substr(1)));
  EXPECT_FALSE(decode_key(encode_key(third) + "x"));
}

}  // namespace
}  // namespace poseidon::snapshot_index_test
