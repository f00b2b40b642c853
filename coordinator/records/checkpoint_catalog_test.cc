#include "coordinator/records/checkpoint_catalog.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::checkpoint_catalog_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

CheckpointManifest manifest(std::uint64_t epoch, Iteration iteration, const char* job = "toy-1") {
  CheckpointManifest made;
  made.snapshot = snapshot_id(Epoch(epoch), iteration);
  made.job_id = job;
  return made;
}

TEST(CheckpointCatalogTest, FindsByIdAndTheNewest) {
  CheckpointCatalog catalog;
  EXPECT_TRUE(absl::IsFailedPrecondition(catalog.find("").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(catalog.find("1-10").status()));
  catalog.add(manifest(2, 5));
  catalog.add(manifest(1, 10));
  EXPECT_EQ((*catalog.find("1-10"))->iteration(), 10);
  EXPECT_EQ((*catalog.find(""))->iteration(), 5) << "a later epoch is newer";
  EXPECT_THAT(catalog.find("1-11").status().message(), HasSubstr("the newest are 2-5, 1-10"));
  EXPECT_TRUE(absl::IsNotFound(catalog.find("1-11").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(catalog.find("newest").status()));
}

TEST(CheckpointCatalogTest, WhatCouldNotBeReadIsTold) {
  CheckpointCatalog catalog;
  catalog.set_unread(
      {"/s/checkpoints/toy-1/2-20.json: checksum", "/s/checkpoints/toy-1/2-30.json: x"});
  EXPECT_EQ(catalog.doubt_about_newest(), "") << "there is none";
  EXPECT_TRUE(absl::IsDataLoss(catalog.find("").status())) << "not: there is no checkpoint";
  EXPECT_THAT(catalog.find("").status().message(), HasSubstr("2-20.json: checksum (and 1 more"));
  EXPECT_TRUE(absl::IsDataLoss(catalog.find("2-30").status()));
  EXPECT_THAT(catalog.find("2-30").status().message(), HasSubstr("2-30.json: x"));
  catalog.add(manifest(1, 10));
  EXPECT_EQ((*catalog.find(""))->iteration(), 10);
  EXPECT_THAT(catalog.doubt_about_newest(), HasSubstr("1-10 is the newest that could be read"));
  EXPECT_TRUE(absl::IsDataLoss(catalog.find("2-20").status()));
  EXPECT_TRUE(absl::IsNotFound(catalog.find("2-2").status())) << "another's name";
  catalog.add(manifest(2, 20));
  EXPECT_EQ((*catalog.find("2-20"))->iteration(), 20) << "its servers have told once more";
  EXPECT_THAT(catalog.unread(), SizeIs(1));
}

TEST(CheckpointCatalogTest, JobsAreToldApart) {
  CheckpointCatalog catalog;
  catalog.add(manifest(1, 10));
  catalog.add(manifest(2, 10, "other-2"));
  ASSERT_THAT(catalog.of_job("other-2"), SizeIs(1));
  EXPECT_EQ(catalog.of_job("other-2")[0].snapshot, snapshot_id(Epoch(2), 10));
}

TEST(CheckpointCatalogTest, WhatIsHeldGoesLater) {
  CheckpointCatalog catalog;
  catalog.add(manifest(1, 10));
  const Nanoseconds begin = std::chrono::hours(1);
  catalog.hold(snapshot_id(Epoch(1), 10), begin);
  EXPECT_FALSE(catalog.remove(manifest(1, 10), begin));
  EXPECT_TRUE(catalog.find("1-10").ok());
  catalog.hold(snapshot_id(Epoch(1), 10), begin + kCheckpointHold / 2);
  EXPECT_THAT(catalog.take_due(begin + kCheckpointHold), IsEmpty()) << "held again";
  EXPECT_THAT(catalog.take_due(begin + 2 * kCheckpointHold), SizeIs(1));
  EXPECT_THAT(catalog.all(), IsEmpty());
  EXPECT_THAT(catalog.take_due(begin + 3 * kCheckpointHold), IsEmpty()) << "once";
}

TEST(CheckpointCatalogTest, WithoutAHoldItGoesAtOnce) {
  CheckpointCatalog catalog;
  catalog.add(manifest(1, 10));
  const Nanoseconds begin = std::chrono::hours(1);
  catalog.hold(snapshot_id(Epoch(1), 10), begin);
  EXPECT_TRUE(catalog.remove(manifest(1, 10), begin + kCheckpointHold));
  EXPECT_THAT(catalog.all(), IsEmpty());
}

TEST(CheckpointCatalogTest, AJobThatGoesOnFromItKeepsIt) {
  CheckpointCatalog catalog;
  catalog.add(manifest(1, 10));
  catalog.hold(snapshot_id(Epoch(1), 10), Nanoseconds(0));
  EXPECT_FALSE(catalog.remove(manifest(1, 10), Nanoseconds(0)));
  catalog.keep(snapshot_id(Epoch(1), 10));
  EXPECT_THAT(catalog.take_due(2 * kCheckpointHold), IsEmpty());
  EXPECT_TRUE(catalog.find("").ok());
}

}  // namespace
}  // namespace poseidon::checkpoint_catalog_test
