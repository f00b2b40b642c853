#include "server/store/store_owner.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::store_owner_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string kA(32, 'a'), kB(32, 'b');

SnapshotId at(std::uint64_t epoch, Iteration iteration) {
  return snapshot_id(Epoch(epoch), iteration);
}

TEST(StoreOwner, RemovesWhatItsCoordinatorDoesNotKnow) {
  StoreOwner owner;
  EXPECT_THAT(owner.unwanted({.identity = kA, .snapshots = {}, .epoch = Epoch(0)}, {}, Epoch(0)),
              IsEmpty());
  EXPECT_EQ(owner.owner(), kA) << "an empty store is anybody's";
  EXPECT_FALSE(owner.begin_epoch());
  EXPECT_THAT(owner.unwanted({.identity = kA, .snapshots = {at(3, 20)}, .epoch = Epoch(0)},
                             {at(2, 5), at(3, 10), at(3, 20)}, Epoch(0)),
              ElementsAre(at(2, 5), at(3, 10)));
}

TEST(StoreOwner, WhatIsInTheMakingStays) {
  StoreOwner owner(kA);
  const std::vector<SnapshotId> sealed = {at(3, 10), at(4, 10), at(5, 10), at(6, 10)};
  EXPECT_THAT(
      owner.unwanted({.identity = kA, .snapshots = {}, .epoch = Epoch(5)}, sealed, Epoch(4)),
      ElementsAre(at(3, 10)))
      << "5 and 6 the coordinator's, 4 this server's, which may not have heard of its end";
}

TEST(StoreOwner, AnotherCoordinatorsCheckpointsStay) {
  StoreOwner owner(kA);
  const WantedSnapshots nothing{.identity = kB, .snapshots = {}, .epoch = Epoch(0)};
  EXPECT_THAT(owner.unwanted(nothing, {at(3, 10)}, Epoch(0)), IsEmpty());
  EXPECT_EQ(owner.owner(), kA);
  // B trains with it: from now on its snapshots are among A's, and neither may remove.
  EXPECT_TRUE(owner.begin_epoch());
  EXPECT_EQ(owner.owner(), StoreOwner::kNobody);
  for (const std::string& identity : {kA, kB}) {
    EXPECT_THAT(owner.unwanted({.identity = identity, .snapshots = {at(3, 10)}, .epoch = Epoch(0)},
                               {at(3, 10), at(4, 10)}, Epoch(0)),
                IsEmpty());
  }
  // A has forgotten its own, so all that is left is B's.
  EXPECT_THAT(owner.unwanted({.identity = kB, .snapshots = {at(4, 10)}, .epoch = Epoch(0)},
                             {at(4, 10)}, Epoch(0)),
              IsEmpty());
  EXPECT_EQ(owner.owner(), kB);
}

TEST(StoreOwner, AStoreThatIsOlderThanThisRuleKeepsWhatNobodyKnows) {
  StoreOwner owner;
  EXPECT_THAT(owner.unwanted({.identity = kA, .snapshots = {at(3, 20)}, .epoch = Epoch(0)},
                             {at(3, 10), at(3, 20)}, Epoch(0)),
              IsEmpty());
  EXPECT_TRUE(owner.begin_epoch());
  EXPECT_EQ(owner.owner(), StoreOwner::kNobody);
}

TEST(StoreOwner, ACoordinatorThatDoesNotKnowAllItWantsRemovesNothing) {
  StoreOwner owner(kA);
  EXPECT_THAT(
      owner.unwanted({.identity = "", .snapshots = {}, .epoch = Epoch(0)}, {at(3, 10)}, Epoch(0)),
      IsEmpty());
  EXPECT_TRUE(owner.begin_epoch()) << "it may be another one";
}

TEST(StoreOwner, IsReadFromItsFile) {
  const std::filesystem::path file =
      std::filesystem::path(::testing::TempDir()) / "poseidon_store_owner_test";
  std::filesystem::remove(file);
  EXPECT_EQ(*read_store_owner(file), "");
  for (const std::string& text : {kA, std::string(StoreOwner::kNobody)}) {
    std::ofstream(file) << text << "\n";
    EXPECT_EQ(*read_store_owner(file), text);
  }
  std::ofstream(file) << "torn";
  EXPECT_EQ(read_store_owner(file).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace poseidon::store_owner_test
