#include "coordinator/job/checkpoints/checkpoint_commit.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::checkpoint_commit_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Epoch kEpoch{5};
constexpr Iteration kLast = 1000;
constexpr Nanoseconds kNow{1'000'000'000};

class CommitTest : public ::testing::Test {
 protected:
  CommitTest() : commit_({}, 2, kLast, {}) { EXPECT_TRUE(begin(kEpoch, 0).empty()); }

  CheckpointActions begin(Epoch epoch, Iteration first) {
    CheckpointManifest frame;
    frame.job_id = "toy-5";
    frame.stores = {std::string(32, 'a'), std::string(32, 'b')};
    frame.pieces = {{.layer = LayerIndex(0), .elements = 4, .holder = ServerIndex(0)},
                    {.layer = LayerIndex(0), .offset = 4, .elements = 4, .holder = ServerIndex(1)}};
    frame.samples = static_cast<std::uint64_t>(first) * 64;
    return commit_.begin_epoch(epoch, first, std::move(frame), /*iteration_samples=*/64);
  }
  CheckpointActions stored(std::uint32_t server, Iteration iteration) {
    return commit_.on_report({.server = ServerIndex(server),
                              .who = absl::StrCat("server ", server),
                              .iteration = iteration,
                              .stored = true,
                              .bytes = 100},
                             1'700'000'000, kNow);
  }
  CheckpointActions failed(Iteration iteration, MissingPart missing = MissingPart::kFailed) {
    return commit_.on_report({.server = ServerIndex(1),
                              .who = "server 1",
                              .iteration = iteration,
                              .missing = missing,
                              .reason = "no space left on device"},
                             1'700'000'000, kNow);
  }
  /// All of it, down to the manifest on disk.
  CheckpointActions commit(Iteration iteration) {
    EXPECT_TRUE(stored(0, iteration).empty());
    const CheckpointActions actions = stored(1, iteration);
    EXPECT_EQ(actions.size(), 1u);
    return commit_.on_manifest_written(snapshot_id(kEpoch, iteration), absl::OkStatus());
  }
  template <typename Action>
  static std::vector<Action> all(const CheckpointActions& actions) {
    std::vector<Action> found;
    for (const CheckpointAction& action : actions) {
      if (const auto* one = std::get_if<Action>(&action)) found.push_back(*one);
    }
    return found;
  }

  CheckpointCommit commit_;
};

TEST_F(CommitTest, IsCommittedWhenAllServersHaveItAndTheManifestIsOnDisk) {
  commit_.on_loss(9, 0.5);
  EXPECT_TRUE(stored(1, 10).empty());
  EXPECT_TRUE(stored(1, 10).empty()) << "said twice";
  const auto written = all<WriteManifest>(stored(0, 10));
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].manifest.iteration(), 10);
  EXPECT_EQ(written[0].manifest.bytes, 200);
  EXPECT_EQ(written[0].manifest.loss, 0.5);
  EXPECT_EQ(commit_.newest(), nullptr);
  const auto after = commit_.on_manifest_written(snapshot_id(kEpoch, 10), absl::OkStatus());
  EXPECT_TRUE(all<ForgetParts>(after).empty());
  ASSERT_NE(commit_.newest(), nullptr);
  EXPECT_EQ(commit_.newest()->iteration(), 10);
  EXPECT_TRUE(commit_.last()->committed);
}

TEST_F(CommitTest, KeepsTheNewestAndRemovesTheManifestBeforeTheParts) {
  commit(10);
  commit(20);
  const CheckpointActions third = commit(30);
  EXPECT_TRUE(all<ForgetParts>(third).empty()) << "not while the manifest is there";
  const auto removed = all<RemoveManifest>(third);
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].manifest.iteration(), 10);
  const auto forgotten =
      all<ForgetParts>(commit_.on_manifest_removed(snapshot_id(kEpoch, 10), absl::OkStatus()));
  ASSERT_EQ(forgotten.size(), 1u);
  EXPECT_EQ(forgotten[0].snapshot, snapshot_id(kEpoch, 10));
  EXPECT_EQ(commit_.committed().size(), 2u);
}

TEST_F(CommitTest, AManifestThatCannotBeRemovedKeepsItsParts) {
  commit(10);
  commit(20);
  commit(30);
  const auto actions =
      commit_.on_manifest_removed(snapshot_id(kEpoch, 10), absl::UnavailableError("read-only"));
  EXPECT_TRUE(all<ForgetParts>(actions).empty());
  EXPECT_TRUE(all<CheckpointLog>(actions).at(0).alarm);
}

// An operator's: nobody here has asked for it.
TEST_F(CommitTest, WhatIsRemovedOnceTheJobIsOverIsNotThereAnyMore) {
  commit(10);
  commit(20);
  const SnapshotId snapshot = snapshot_id(kEpoch, 10);
  const auto kept = commit_.on_manifest_removed(snapshot, absl::UnavailableError("read-only"));
  EXPECT_TRUE(all<ForgetParts>(kept).empty());
  EXPECT_EQ(commit_.committed().size(), 2u);
  const auto forgotten = all<ForgetParts>(commit_.on_manifest_removed(snapshot, absl::OkStatus()));
  ASSERT_EQ(forgotten.size(), 1u);
  EXPECT_EQ(forgotten[0].snapshot, snapshot);
  EXPECT_EQ(commit_.committed().size(), 1u);
}

TEST_F(CommitTest, AFailureForgetsThePartsAndTheNextOneIsTried) {
  commit(10);
  stored(0, 20);
  const CheckpointActions actions = failed(20);
  ASSERT_EQ(all<ForgetParts>(actions).size(), 1u);
  const auto log = all<CheckpointLog>(actions).at(0);
  EXPECT_TRUE(log.alarm);
  EXPECT_THAT(log.text, HasSubstr("server 1: no space left"));
  EXPECT_THAT(log.text, HasSubstr("last good one is 5-10"));
  EXPECT_EQ(all<ForgetParts>(stored(0, 20)).size(), 1u) << "a part that was sealed meanwhile";
  EXPECT_EQ(commit_.newest()->iteration(), 10);
  commit(30);
  EXPECT_EQ(commit_.newest()->iteration(), 30);
}

TEST_F(CommitTest, AManifestThatCannotBeWrittenIsNoCheckpoint) {
  stored(0, 10);
  stored(1, 10);
  const auto actions = commit_.on_manifest_written(snapshot_id(kEpoch, 10),
                                                   absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ(all<ForgetParts>(actions).size(), 1u);
  EXPECT_EQ(commit_.newest(), nullptr);
  EXPECT_FALSE(commit_.last()->committed);
}

TEST_F(CommitTest, NothingThatIsSaidLaterTouchesWhatAllServersHave) {
  stored(0, 10);
  EXPECT_EQ(all<WriteManifest>(stored(1, 10)).size(), 1u);
  EXPECT_TRUE(failed(10).empty()) << "a worker that missed the last answer";
  commit_.on_manifest_written(snapshot_id(kEpoch, 10), absl::OkStatus());
  EXPECT_TRUE(failed(10).empty());
  EXPECT_TRUE(failed(10, MissingPart::kTooLate).empty());
  EXPECT_TRUE(stored(0, 10).empty());
  EXPECT_FALSE(commit_.in_the_making()) << "nothing that could fail after its time";
  EXPECT_EQ(commit_.newest()->iteration(), 10);
}

TEST_F(CommitTest, AnOperatorsWishCanEndAtWhatIsCommitted) {
  // The coordinator was away: reports come behind the checkpoints.
  ASSERT_TRUE(commit_.ask(kLast - 8, kNow).ok());
  commit(kLast);
  const CheckpointActions actions = failed(kLast - 6, MissingPart::kTooLate);
  ASSERT_EQ(all<AskForCheckpoint>(actions).at(0).iteration, kLast - 4);
  EXPECT_TRUE(all<AskForCheckpoint>(failed(kLast - 4, MissingPart::kTooLate)).empty());
  EXPECT_FALSE(commit_.asked_for());
  EXPECT_TRUE(commit_.last()->committed);
  EXPECT_EQ(commit_.newest()->iteration(), kLast);
}

TEST_F(CommitTest, KeepsTheNewestThatTheMetricsReach) {
  commit_.on_told(snapshot_id(kEpoch, 12));
  commit(10);
  commit(20);
  EXPECT_EQ(all<RemoveManifest>(commit(30)).at(0).manifest.iteration(), 20);
  EXPECT_TRUE(commit_.committed().contains(snapshot_id(kEpoch, 10)));
  EXPECT_EQ(all<RemoveManifest>(commit(40)).at(0).manifest.iteration(), 30);
  // A new epoch begins there; what was beyond comes to nothing, and goes first.
  begin(Epoch(6), 10);
  commit_.on_told(snapshot_id(Epoch(6), 15));
  const SnapshotId next = snapshot_id(Epoch(6), 15);
  stored(0, 15);
  stored(1, 15);
  const auto removed = all<RemoveManifest>(commit_.on_manifest_written(next, absl::OkStatus()));
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].manifest.iteration(), 10) << "the oldest again";
  EXPECT_TRUE(commit_.committed().contains(next));
}

TEST_F(CommitTest, WhatAnEpochBeganFromStaysUntilItHasItsOwn) {
  commit_.on_told(snapshot_id(kEpoch, 12));
  commit(10);
  stored(0, 12);
  stored(1, 12);
  stored(0, 14);
  stored(1, 14);
  begin(Epoch(6), 10);
  // Manifests of the epoch before, written late: beyond where this one began.
  commit_.on_manifest_written(snapshot_id(kEpoch, 12), absl::OkStatus());
  const auto removed =
      all<RemoveManifest>(commit_.on_manifest_written(snapshot_id(kEpoch, 14), absl::OkStatus()));
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].manifest.iteration(), 12);
  EXPECT_TRUE(commit_.committed().contains(snapshot_id(kEpoch, 10)));
}

TEST_F(CommitTest, WhatTheMetricsReachIsWhatTheyHaveOnDisk) {
  commit_.on_told(snapshot_id(kEpoch, 12));
  commit(10);
  for (const Iteration iteration : {20, 30, 40}) {
    commit_.on_loss(iteration - 1, 0.5);  // their lines wait for a full disk
    commit(iteration);
  }
  EXPECT_TRUE(commit_.committed().contains(snapshot_id(kEpoch, 10)));
  EXPECT_EQ(commit_.committed().size(), 2u);
  EXPECT_TRUE(commit_.on_told(snapshot_id(Epoch(4), 40)).empty()) << "an epoch that is over";
  EXPECT_TRUE(commit_.on_told(snapshot_id(kEpoch, 40)).empty()) << "as many as are kept";
  EXPECT_EQ(all<RemoveManifest>(commit(50)).at(0).manifest.iteration(), 10);
}

TEST_F(CommitTest, WhatIsSavedOfMemoryStaysThoughNoLineOnDiskReachesIt) {
  commit_.on_told(snapshot_id(kEpoch, 85));
  commit(80);
  commit(100);  // beyond what a worker has told of
  commit_.on_loss(94, 0.5);
  commit_.need(snapshot_id(kEpoch, 95));
  commit_.ask_held(95, kNow);
  stored(0, 95);
  stored(1, 95);
  commit_.on_manifest_written(snapshot_id(kEpoch, 95), absl::OkStatus());
  EXPECT_TRUE(commit_.committed().contains(snapshot_id(kEpoch, 95)));
  EXPECT_TRUE(commit_.committed().contains(snapshot_id(kEpoch, 80))) << "for another process";
  EXPECT_THAT(all<RemoveManifest>(begin(Epoch(6), 95)), ::testing::IsEmpty());
}

TEST_F(CommitTest, WhatTheRunHasLeftIsNothingToFallBackTo) {
  commit_.on_told(snapshot_id(kEpoch, 50));
  commit(10);
  commit(20);
  // Version 20 could not be read: epoch 6 began at 10, and went its own way from there.
  commit_.abandon(snapshot_id(kEpoch, 20));
  begin(Epoch(6), 10);
  commit_.on_told(snapshot_id(Epoch(6), 30));
  begin(Epoch(7), 30);
  EXPECT_THAT(commit_.abandoned(), ElementsAre(snapshot_id(kEpoch, 20)));
  const SnapshotId next = snapshot_id(Epoch(7), 35);
  stored(0, 35);
  stored(1, 35);
  const auto removed = all<RemoveManifest>(commit_.on_manifest_written(next, absl::OkStatus()));
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].manifest.iteration(), 20) << "10 is what a recovery would begin from";
  EXPECT_FALSE(commit_.abandoned().empty()) << "it may still be on disk";
  commit_.on_manifest_removed(snapshot_id(kEpoch, 20), absl::OkStatus());
  EXPECT_TRUE(commit_.abandoned().empty());
}

TEST_F(CommitTest, WhatNoRecoveryWouldBeginFromGoesFirst) {
  commit_.on_told(snapshot_id(kEpoch, 50));
  commit(10);
  commit(20);
  commit_.abandon(snapshot_id(kEpoch, 20));
  begin(Epoch(6), 10);
  stored(0, 30);
  stored(1, 30);
  commit_.on_told(snapshot_id(Epoch(6), 40));
  const auto removed =
      all<RemoveManifest>(commit_.on_manifest_written(snapshot_id(Epoch(6), 30), absl::OkStatus()));
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].manifest.iteration(), 20) << "should 30 be damaged, there is still 10";
}

TEST_F(CommitTest, WhatCannotBeReadIsNothingToFallBackTo) {
  commit(10);
  commit(20);
  commit_.set_unreadable(snapshot_id(kEpoch, 20));
  EXPECT_TRUE(commit_.any_unreadable());
  begin(Epoch(6), 10);
  for (const Iteration iteration : {15, 18}) {
    stored(0, iteration);
    stored(1, iteration);
    const auto removed = all<RemoveManifest>(
        commit_.on_manifest_written(snapshot_id(Epoch(6), iteration), absl::OkStatus()));
    ASSERT_EQ(removed.size(), 1u);
    EXPECT_EQ(removed[0].manifest.iteration(), iteration == 15 ? 20 : 15)
        << "no line reaches the others: epoch 6 would begin at 10 again";
  }
}

TEST_F(CommitTest, WhatIsUnderWayWhenTheRunLeavesItsCourseIsLeftToo) {
  stored(0, 50);
  stored(1, 50);
  commit_.abandon_beyond(10, Epoch(6));
  begin(Epoch(6), 10);
  commit_.abandon_beyond(60, Epoch(7));
  begin(Epoch(7), 60);
  commit_.on_manifest_written(snapshot_id(kEpoch, 50), absl::OkStatus());
  EXPECT_TRUE(commit_.is_abandoned(snapshot_id(kEpoch, 50)));
}

TEST_F(CommitTest, AnEpochDoesNotPutLinesOnDisk) {
  // The disk of the run is full since iteration 12; a worker is lost after 41.
  commit_.on_told(snapshot_id(kEpoch, 12));
  commit(10);
  commit(41);
  begin(Epoch(6), 41);
  const auto commit_one = [this](Iteration iteration) {
    stored(0, iteration);
    stored(1, iteration);
    return all<RemoveManifest>(
        commit_.on_manifest_written(snapshot_id(Epoch(6), iteration), absl::OkStatus()));
  };
  EXPECT_TRUE(commit_one(45).empty());
  EXPECT_TRUE(commit_.committed().contains(snapshot_id(kEpoch, 10))) << "for another process";
  EXPECT_TRUE(commit_.committed().contains(snapshot_id(kEpoch, 41))) << "for this one";
  // It has room again: all lines come, in their order.
  const auto removed = all<RemoveManifest>(commit_.on_told(snapshot_id(Epoch(6), 46)));
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].manifest.iteration(), 10);
}

TEST_F(CommitTest, NamesWhoDoesNotAnswer) {
  stored(0, 10);
  EXPECT_TRUE(commit_.tick(kNow + std::chrono::minutes(9)).empty());
  const auto actions = commit_.tick(kNow + std::chrono::minutes(11));
  EXPECT_THAT(all<CheckpointLog>(actions).at(0).text,
              HasSubstr("not stored after 600 s by server 1"));
  EXPECT_TRUE(commit_.tick(kNow + std::chrono::minutes(30)).empty()) << "once";
}

TEST_F(CommitTest, WhatIsAskedForHasItsTimeOnceTrainingIsThere) {
  commit_.on_loss(41, 0.1);
  ASSERT_TRUE(commit_.ask(42, kNow).ok());
  const Nanoseconds there = kNow + std::chrono::hours(3);  // of long iterations
  for (auto now = kNow; now <= there; now += std::chrono::minutes(5)) {
    ASSERT_TRUE(commit_.tick(now).empty());
  }
  commit_.on_loss(43, 0.1);
  EXPECT_TRUE(commit_.tick(there + std::chrono::minutes(9)).empty());
  EXPECT_THAT(all<CheckpointLog>(commit_.tick(there + std::chrono::minutes(11))).at(0).text,
              HasSubstr("not stored after 600 s by server 0, server 1"));
}

TEST_F(CommitTest, AsksForAVersionThatIsStillToCome) {
  commit_.on_loss(41, 0.1);
  const auto asked = commit_.ask(42, kNow);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(all<AskForCheckpoint>(*asked).at(0).iteration, 44);
  EXPECT_FALSE(commit_.ask(42, kNow).ok()) << "one at a time";
  // Training was faster: further ahead, and the other server's part of the first is forgotten.
  commit_.on_loss(50, 0.1);
  const CheckpointActions again = failed(44, MissingPart::kTooLate);
  EXPECT_EQ(all<AskForCheckpoint>(again).at(0).iteration, 51 + 4);
  EXPECT_EQ(all<ForgetParts>(again).at(0).snapshot, snapshot_id(kEpoch, 44));
  EXPECT_TRUE(failed(44, MissingPart::kTooLate).empty()) << "the second server says so too";
  commit(55);
  EXPECT_FALSE(commit_.asked_for());
}

TEST_F(CommitTest, WhatIsAskedForBeyondTheEndIsGivenUp) {
  commit_.on_loss(41, 0.1);
  ASSERT_TRUE(commit_.ask(42, kNow).ok());
  EXPECT_TRUE(commit_.end_at(44).empty()) << "it is the last";
  EXPECT_EQ(commit_.asked_for(), 44);
  const CheckpointActions given_up = commit_.end_at(43);
  EXPECT_EQ(all<ForgetParts>(given_up).at(0).snapshot, snapshot_id(kEpoch, 44));
  EXPECT_FALSE(commit_.asked_for());
  EXPECT_THAT(commit_.last()->reason, HasSubstr("training ended before it"));
}

TEST_F(CommitTest, KnowsWhichOnesAnOperatorAskedFor) {
  EXPECT_TRUE(commit_.ask(10, kNow).ok());
  EXPECT_EQ(commit_.asked_for(), 12);
  EXPECT_FALSE(commit_.is_asked(snapshot_id(kEpoch, 12))) << "a change of the plan wants it";
  commit_.mark_asked();
  EXPECT_TRUE(commit_.is_asked(snapshot_id(kEpoch, 12)));
  failed(12, MissingPart::kTooLate);
  const std::optional<Iteration> later = commit_.asked_for();
  ASSERT_TRUE(later && *later > 12);
  EXPECT_TRUE(commit_.is_asked(snapshot_id(kEpoch, *later))) << "the wish goes with it";
  commit(*later + 1);  // a periodic one, first
  EXPECT_FALSE(commit_.is_asked(snapshot_id(kEpoch, *later + 1)));
  EXPECT_EQ(commit_.asked_for(), later);
  commit(*later);
  EXPECT_TRUE(commit_.is_asked(snapshot_id(kEpoch, *later)));
  commit(*later + 10);
  EXPECT_FALSE(commit_.is_asked(snapshot_id(kEpoch, *later + 10))) << "no operator asked for it";

  EXPECT_TRUE(commit_.ask(*later + 10, kNow).ok());
  commit_.mark_asked();
  const Iteration last = *commit_.asked_for();
  failed(last);
  EXPECT_TRUE(commit_.is_asked(snapshot_id(kEpoch, last))) << "and has failed";
  begin(Epoch(6), 0);
  EXPECT_TRUE(commit_.is_asked(snapshot_id(kEpoch, *later))) << "also in the next epoch";
}

TEST_F(CommitTest, AWishThatTheEpochsEndOvertakesIsNotThatOfTheNext) {
  EXPECT_TRUE(commit_.ask(10, kNow).ok());
  commit_.mark_asked();
  begin(Epoch(6), 0);
  EXPECT_TRUE(commit_.ask(10, kNow).ok());
  EXPECT_EQ(commit_.asked_for(), 12);
  EXPECT_FALSE(commit_.is_asked(snapshot_id(Epoch(6), 12)));
}

TEST_F(CommitTest, WhatFindsNoRoomBesideEarlierOnesIsAskedForAgain) {
  commit_.on_loss(41, 0.1);
  ASSERT_TRUE(commit_.ask(42, kNow).ok());
  const CheckpointActions busy = failed(44, MissingPart::kBusy);
  EXPECT_EQ(all<ForgetParts>(busy).at(0).snapshot, snapshot_id(kEpoch, 44));
  EXPECT_THAT(all<AskForCheckpoint>(busy), IsEmpty()) << "not at once";
  EXPECT_TRUE(failed(44, MissingPart::kBusy).empty()) << "another node says so too";
  EXPECT_TRUE(commit_.asked_for());
  commit_.on_loss(60, 0.1);
  EXPECT_THAT(commit_.tick(kNow + std::chrono::milliseconds(900)), IsEmpty());
  const auto again = all<AskForCheckpoint>(commit_.tick(kNow + std::chrono::seconds(1)));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].iteration, 61 + 2) << "no further ahead than the first time";
  commit(63);
  EXPECT_FALSE(commit_.asked_for());
  EXPECT_THAT(commit_.tick(kNow + std::chrono::minutes(1)), IsEmpty());
}

/// Nobody looks at the time while a coordinator is being stopped.
TEST_F(CommitTest, ItIsAskedForAgainAsSoonAsAnEarlierOneIsWhole) {
  ASSERT_TRUE(commit_.ask(42, kNow).ok());
  commit_.on_loss(41, 0.1);
  failed(44, MissingPart::kBusy);
  EXPECT_FALSE(commit_.awaited_from(ServerIndex(0))) << "nobody is asked for it now";
  commit_.on_loss(45, 0.1);
  const auto again = all<AskForCheckpoint>(commit(40));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].iteration, 48);
  EXPECT_EQ(commit_.awaited_from(ServerIndex(0)), 48);
  EXPECT_THAT(all<AskForCheckpoint>(commit_.tick(kNow + std::chrono::seconds(2))), IsEmpty());
}

TEST_F(CommitTest, WhatNeverFindsRoomIsGivenUpInTheEnd) {
  ASSERT_TRUE(commit_.ask(0, kNow).ok());
  Nanoseconds now = kNow;
  int times = 0;
  for (Iteration done = 0; commit_.asked_for() && times < 10'000; ++times) {
    done = *commit_.asked_for();
    commit_.on_loss(done, 0.1);
    commit_.on_report({.server = ServerIndex(1),
                       .who = "server 1",
                       .iteration = done,
                       .missing = MissingPart::kBusy,
                       .reason = "the disk is still busy"},
                      1'700'000'000, now);
    now += std::chrono::seconds(20);
    commit_.tick(now);
  }
  EXPECT_NEAR(times, 31, 1) << "10 minutes";
  EXPECT_EQ(commit_.last()->reason, "server 1: the disk is still busy");
}

TEST_F(CommitTest, OnlyOneThatIsAskedForIsTriedAgain) {
  const CheckpointActions actions = failed(40, MissingPart::kBusy);
  EXPECT_THAT(all<CheckpointLog>(actions).at(0).text, HasSubstr("checkpoint 5-40 failed"));
  EXPECT_THAT(commit_.tick(kNow + std::chrono::seconds(5)), IsEmpty());
}

TEST_F(CommitTest, WhatTrainingStandsStillForIsNotAskedForFurtherOn) {
  commit_.on_loss(41, 0.1);
  ASSERT_EQ(all<AskForCheckpoint>(commit_.ask_held(42, kNow)).size(), 1u);
  failed(42, MissingPart::kBusy);
  EXPECT_FALSE(commit_.asked_for());
  EXPECT_THAT(commit_.tick(kNow + std::chrono::seconds(5)), IsEmpty());
}

TEST_F(CommitTest, ANewEpochGivesUpWhatIsNotWhole) {
  stored(0, 10);
  const CheckpointActions actions = begin(Epoch(6), 0);
  EXPECT_EQ(all<ForgetParts>(actions).at(0).snapshot, snapshot_id(kEpoch, 10));
  EXPECT_EQ(commit_.newest(), nullptr);
}

TEST_F(CommitTest, AManifestUnderWayCountsWhateverTheEpoch) {
  stored(0, 10);
  stored(1, 10);
  EXPECT_TRUE(begin(Epoch(6), 10).empty());
  commit_.on_manifest_written(snapshot_id(kEpoch, 10), absl::OkStatus());
  ASSERT_NE(commit_.newest(), nullptr);
  EXPECT_EQ(commit_.newest()->iteration(), 10);
}

TEST_F(CommitTest, NothingIsAskedForAfterTheLastIteration) {
  const auto asked = all<AskForCheckpoint>(*commit_.ask(kLast - 1, kNow));
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].iteration, kLast);
  EXPECT_EQ(commit_.in_the_making(), kLast);
  EXPECT_FALSE(commit_.is_settled(kLast));
  const CheckpointActions actions = failed(kLast, MissingPart::kTooLate);
  EXPECT_TRUE(all<AskForCheckpoint>(actions).empty());
  EXPECT_FALSE(commit_.asked_for());
  EXPECT_FALSE(commit_.in_the_making());
  EXPECT_TRUE(commit_.is_settled(kLast));
  EXPECT_THAT(commit_.last()->reason, HasSubstr("last iteration"));
}

TEST_F(CommitTest, SettledIsWhatIsCommittedOrHasFailed) {
  EXPECT_TRUE(commit_.is_settled(0)) << "where the epoch began";
  EXPECT_FALSE(commit_.any_in_the_making());
  stored(0, 10);
  EXPECT_TRUE(commit_.any_in_the_making());
  failed(20);
  EXPECT_TRUE(commit_.is_settled(20)) << "nothing more comes of it";
  stored(1, 10);
  EXPECT_FALSE(commit_.is_settled(10)) << "its manifest is not on disk";
  commit_.on_manifest_written(snapshot_id(kEpoch, 10), absl::OkStatus());
  EXPECT_TRUE(commit_.is_settled(10));
  EXPECT_FALSE(commit_.is_settled(30));
  EXPECT_FALSE(commit_.any_in_the_making());
}

TEST_F(CommitTest, WhatAnEarlierCoordinatorCommittedInTheEpochIsSettled) {
  commit(10);
  begin(kEpoch, 5);
  EXPECT_TRUE(commit_.is_settled(10));
  EXPECT_FALSE(commit_.is_settled(20));
}

TEST_F(CommitTest, WhatIsRemovedInItsTurnHasNotFailedButWhatIsWaitedForHas) {
  for (const Iteration version : {10, 20, 30}) commit(version);  // 10 is not kept
  EXPECT_TRUE(failed(10).empty());
  EXPECT_EQ(commit_.totals().failures, 0u);
  begin(kEpoch, 0);  // another process: training is not known to be as far as its checkpoints
  commit_.ask_held(25, kNow);
  failed(25);
  ASSERT_TRUE(commit_.last());
  EXPECT_EQ(commit_.last()->snapshot, snapshot_id(kEpoch, 25));
  EXPECT_FALSE(commit_.last()->committed);
}

TEST_F(CommitTest, AnotherJobsCheckpointIsNotRemoved) {
  CheckpointManifest source;
  source.snapshot = snapshot_id(Epoch(3), 7);
  source.job_id = "other-3";
  CheckpointCommit branch({}, 2, kLast, {source});
  CheckpointManifest frame;
  frame.job_id = "toy-5";
  frame.stores = {std::string(32, 'a')};
  frame.pieces = {{.layer = std::nullopt, .holder = ServerIndex(0)}};
  branch.begin_epoch(kEpoch, 7, std::move(frame), /*iteration_samples=*/64);
  const auto commit_one = [&branch](Iteration iteration) {
    branch.on_told(snapshot_id(kEpoch, iteration));
    branch.on_report({.server = ServerIndex(0), .who = "", .iteration = iteration, .stored = true},
                     1'700'000'000, kNow);
    return branch.on_manifest_written(snapshot_id(kEpoch, iteration), absl::OkStatus());
  };
  commit_one(10);
  EXPECT_EQ(branch.committed().begin()->second.job_id, "other-3");
  EXPECT_TRUE(all<RemoveManifest>(commit_one(20)).empty());
  EXPECT_EQ(branch.committed().size(), 2u);
  EXPECT_EQ(all<RemoveManifest>(commit_one(30)).at(0).manifest.iteration(), 10);
}

}  // namespace
}  // namespace poseidon::checkpoint_commit_test
