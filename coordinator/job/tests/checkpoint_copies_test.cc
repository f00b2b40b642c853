#include "coordinator/job/checkpoints/checkpoint_copies.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::checkpoint_copies_test {
namespace {

using State = CheckpointCopies::State;
using ::testing::HasSubstr;

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

NodeInfo server(const std::string& store) {
  NodeInfo info;
  info.role = NodeRole::kServer;
  info.address = "10.0.0.1:1";
  info.store_identity = store;
  return info;
}

CheckpointPiece piece(std::uint32_t holder, std::optional<std::uint32_t> second) {
  CheckpointPiece piece{.holder = ServerIndex(holder)};
  if (second) piece.second = ServerIndex(*second);
  return piece;
}

TEST(CopiesHere, CountsThePieceWithTheFewest) {
  CheckpointManifest manifest;
  manifest.stores = {"a", "b", "c"};
  manifest.pieces = {piece(0, 1), piece(1, 2), piece(2, 0)};
  EXPECT_EQ(copies_here(manifest, {server("a"), server("b"), server("c")}), 2);
  EXPECT_EQ(copies_here(manifest, {server("a"), server("b"), server("d")}), 1);
  EXPECT_EQ(copies_here(manifest, {server("a")}), 0) << "a piece of it is nowhere";
  manifest.pieces = {piece(0, std::nullopt)};
  EXPECT_EQ(copies_here(manifest, {server("a"), server("b"), server("c")}), 1);
}

TEST(CheckpointCopies, AJobThatAsksForOneHasAlwaysEnough) {
  CheckpointCopies copies(1, at(60));
  EXPECT_FALSE(copies.look(1, std::nullopt));
  EXPECT_FALSE(copies.look(1, 1));
  EXPECT_EQ(copies.missing(), 0);
  EXPECT_EQ(copies.text(), "");
  EXPECT_FALSE(copies.take_wish(at(1)));
}

TEST(CheckpointCopies, WithoutAServerOneIsMissingUntilAnotherHasTheNewest) {
  CheckpointCopies copies(2, at(60));
  EXPECT_FALSE(copies.look(2, 2));
  EXPECT_TRUE(copies.look(1, 1));
  EXPECT_FALSE(copies.look(1, 1)) << "told once";
  EXPECT_EQ(copies.state(), State::kServersMissing);
  EXPECT_EQ(copies.missing(), 1);
  EXPECT_THAT(copies.text(), HasSubstr("checkpoints have 1 of 2 copies"));
  EXPECT_THAT(copies.text(), HasSubstr("1 server is missing; start 1 more poseidon-server"));
  EXPECT_FALSE(copies.take_wish(at(1))) << "another checkpoint would have no more";

  EXPECT_TRUE(copies.look(2, 1));
  EXPECT_EQ(copies.state(), State::kOldOnes);
  EXPECT_EQ(copies.missing(), 1);
  EXPECT_THAT(copies.text(), HasSubstr("the newest checkpoint has 1 of 2 copies"));
  EXPECT_TRUE(copies.take_wish(at(1)));
  EXPECT_FALSE(copies.take_wish(at(60))) << "it may have failed: not again and again";
  EXPECT_TRUE(copies.take_wish(at(61)));

  EXPECT_TRUE(copies.look(2, 2));
  EXPECT_EQ(copies.state(), State::kWhole);
  EXPECT_EQ(copies.missing(), 0);
  EXPECT_EQ(copies.text(), "");
}

TEST(CheckpointCopies, AJobWithoutACheckpointNeedsServersOnly) {
  CheckpointCopies copies(2, at(60));
  EXPECT_TRUE(copies.look(1, std::nullopt));
  EXPECT_EQ(copies.state(), State::kServersMissing);
  EXPECT_TRUE(copies.look(2, std::nullopt));
  EXPECT_EQ(copies.state(), State::kWhole);
}

TEST(CheckpointCopies, WhatIsInNoStoreLacksAll) {
  CheckpointCopies copies(2, at(60));
  EXPECT_TRUE(copies.look(1, 0));
  EXPECT_EQ(copies.missing(), 2);
}

}  // namespace
}  // namespace poseidon::checkpoint_copies_test
