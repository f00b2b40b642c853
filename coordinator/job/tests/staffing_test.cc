#include "coordinator/job/staffing/staffing.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::staffing_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

NodeInfo worker(std::uint64_t id, const std::string& host = "") {
  NodeInfo info;
  info.id = NodeId(id);
  info.role = NodeRole::kWorker;
  info.address =
      (host.empty() ? "10.0.0." + std::to_string(id) : host) + ":" + std::to_string(4000 + id);
  info.peer_host = host.empty() ? "10.0.0." + std::to_string(id) : host;
  return info;
}

NodeInfo server(std::uint64_t id, const std::string& store = "") {
  NodeInfo info = worker(id);
  info.role = NodeRole::kServer;
  info.store_identity = store.empty() ? "store" + std::to_string(id) : store;
  return info;
}

CheckpointManifest manifest(const std::vector<std::string>& stores) {
  CheckpointManifest m;
  m.snapshot = snapshot_id(Epoch(3), 10);
  m.stores = stores;
  for (std::uint32_t i = 0; i < stores.size(); ++i) {
    m.pieces.push_back({.holder = ServerIndex(i)});
  }
  return m;
}

/// Servers 1 and 2 and workers 11 and 12 have places, unless told otherwise.
class StaffingTest : public ::testing::Test {
 protected:
  void begin(StaffingNeeds needs, std::vector<NodeInfo> members) {
    staffing_.emplace(std::move(needs), MishapOptions{}, checkpoints_);
    set_members(std::move(members));
    ASSERT_TRUE(staffing_->choose_nodes(nullptr));
    staffing_->set_begun_with(static_cast<std::uint32_t>(roster().workers.size()));
    staffing_->on_trained();
    roster().set_all(ParticipantState::kRunning);
  }
  void begin() {
    begin({.workers = 2, .servers = 2}, {server(1), server(2), worker(11), worker(12)});
  }
  void set_members(std::vector<NodeInfo> members) {
    members_ = std::move(members);
    staffing_->set_members(members_);
  }
  void join(const NodeInfo& node) {
    members_.push_back(node);
    staffing_->set_members(members_);
  }
  void lose(std::uint64_t id) {
    std::erase_if(members_, [id](const NodeInfo& n) { return n.id == NodeId(id); });
    staffing_->on_gone(NodeId(id));
    roster().find(NodeId(id))->state = ParticipantState::kLost;
  }
  Roster& roster() { return staffing_->roster(); }
  static std::vector<std::uint64_t> ids(const std::vector<Participant>& group) {
    std::vector<std::uint64_t> ids;
    for (const Participant& p : group) ids.push_back(p.node.id.value());
    return ids;
  }

  CheckpointCommit checkpoints_{{}, 3, 100, {manifest({"store1", "store2"})}};
  std::optional<Staffing> staffing_;
  std::vector<NodeInfo> members_;
};

TEST_F(StaffingTest, TakesTheFirstThatFitAsSoonAsThereAreEnough) {
  staffing_.emplace(StaffingNeeds{.workers = 2, .servers = 1}, MishapOptions{}, checkpoints_);
  set_members({worker(11), server(1)});
  EXPECT_FALSE(staffing_->has_enough());
  EXPECT_FALSE(staffing_->choose_nodes(nullptr));
  EXPECT_THAT(staffing_->members_text(), HasSubstr("1 of 2 workers and 1 of 1 servers are here"));
  for (const NodeInfo& node : {server(2), worker(12), worker(13)}) join(node);
  ASSERT_TRUE(staffing_->choose_nodes(nullptr));
  EXPECT_THAT(ids(roster().workers), ::testing::ElementsAre(11, 12));
  EXPECT_THAT(ids(roster().servers), ::testing::ElementsAre(1));
  EXPECT_EQ(roster().workers[1].index, 1u);
}

/// With a rank that it must have.
NodeInfo ranked(std::uint64_t id, std::uint32_t rank) {
  NodeInfo info = worker(id);
  info.job = "gpt-7";
  info.rank = WorkerRank(rank);
  return info;
}

TEST_F(StaffingTest, WorkersThatMustHaveARankGetItWheneverTheyCome) {
  staffing_.emplace(StaffingNeeds{.workers = 3, .servers = 1}, MishapOptions{}, checkpoints_);
  set_members({server(1), ranked(11, 2), ranked(12, 0), ranked(13, 2), ranked(14, 7)});
  EXPECT_FALSE(staffing_->has_enough()) << "two must have rank 2, and there is no rank 7";
  EXPECT_THAT(staffing_->members_text(), HasSubstr("0 of 3 workers"));
  join(worker(15));
  ASSERT_TRUE(staffing_->choose_nodes(nullptr));
  EXPECT_THAT(ids(roster().workers), ::testing::ElementsAre(12, 15, 13))
      << "the last that came for rank 2";
}

TEST_F(StaffingTest, AVacantPlaceIsGivenToNoWorkerThatMustHaveAnotherRank) {
  begin({.workers = 2, .servers = 1, .min_workers = 2}, {server(1), ranked(11, 0), ranked(12, 1)});
  lose(12);
  join(ranked(13, 0));
  EXPECT_THAT(staffing_->fill_vacancies({.now = at(1), .in_time = true}), HasSubstr("worker 1"));
  EXPECT_FALSE(staffing_->can_do_without(roster().workers[1], nullptr, at(1)));
  EXPECT_TRUE(staffing_->can_do_without(roster().workers[0], nullptr, at(1)));
  join(ranked(14, 1));
  EXPECT_EQ(staffing_->fill_vacancies({.now = at(2), .in_time = true}), "");
  EXPECT_THAT(ids(roster().workers), ::testing::ElementsAre(11, 14));
}

TEST_F(StaffingTest, EachCopyOfACheckpointNeedsAServerWhereTheJobBegins) {
  staffing_.emplace(StaffingNeeds{.workers = 1, .replicas = 2}, MishapOptions{}, checkpoints_);
  set_members({worker(11), server(1)});
  EXPECT_FALSE(staffing_->has_enough());
  staffing_->set_begun_with(1);
  EXPECT_TRUE(staffing_->has_enough()) << "later it goes on with fewer";
}

TEST_F(StaffingTest, ALostServersPlaceWaitsForItsData) {
  begin();
  lose(2);
  join(server(3));
  EXPECT_THAT(staffing_->fill_vacancies({.now = at(1), .in_time = true}), HasSubstr("server 1"));
  join(server(4, "store2"));
  EXPECT_EQ(staffing_->fill_vacancies({.now = at(1), .in_time = true}), "");
  EXPECT_THAT(ids(roster().servers), ::testing::ElementsAre(1, 4));
  EXPECT_EQ(roster().servers[1].index, 1u);
  EXPECT_TRUE(roster().servers[1].is_new);
}

TEST_F(StaffingTest, AnyServerTakesThePlaceAfterAWhile) {
  begin();
  lose(2);
  join(server(3));
  EXPECT_EQ(staffing_->fill_vacancies({.now = at(1), .in_time = false}), "");
  EXPECT_THAT(ids(roster().servers), ::testing::ElementsAre(1, 3));
}

TEST_F(StaffingTest, NobodyWaitsForTheDataOfAServerThatIsCutOff) {
  begin();
  roster().servers[1].state = ParticipantState::kLost;
  roster().servers[1].is_cut_off = true;
  staffing_->suspects().set_unfit(NodeId(2));
  join(server(3));
  EXPECT_EQ(staffing_->fill_vacancies({.now = at(1), .in_time = true}), "");
  EXPECT_THAT(ids(roster().servers), ::testing::ElementsAre(1, 3));
}

TEST_F(StaffingTest, AWorkerOnTheSameMachineComesFirst) {
  begin({.workers = 2, .servers = 1}, {server(1), worker(11, "10.0.0.8"), worker(12, "10.0.0.9")});
  lose(12);
  join(worker(13, "10.0.0.7"));
  join(worker(14, "10.0.0.9"));
  EXPECT_EQ(staffing_->fill_vacancies({.now = at(1)}), "");
  EXPECT_THAT(ids(roster().workers), ::testing::ElementsAre(11, 14));
}

TEST_F(StaffingTest, WhoeverWasLeftOutMayTakeItsPlaceAgain) {
  begin();
  roster().workers[1].state = ParticipantState::kLost;
  EXPECT_EQ(staffing_->fill_vacancies({.now = at(1)}), "");
  EXPECT_EQ(roster().workers[1].state, ParticipantState::kWaiting);
  roster().workers[1].state = ParticipantState::kLost;
  staffing_->suspects().set_unfit(NodeId(12));
  EXPECT_THAT(staffing_->fill_vacancies({.now = at(1), .needed = true}), HasSubstr("worker 1"));
}

TEST_F(StaffingTest, VacantPlacesGoAsFarAsTheJobAllows) {
  begin({.min_workers = 2,
         .allows = [](std::uint32_t, std::uint32_t workers) { return workers % 2 == 0; }},
        {server(1), server(2), worker(11), worker(12), worker(13), worker(14)});
  lose(11);
  lose(1);
  ASSERT_TRUE(staffing_->may_close_vacancies());
  staffing_->close_vacancies();
  EXPECT_THAT(ids(roster().workers), ::testing::ElementsAre(12, 13)) << "three are not allowed";
  EXPECT_THAT(ids(roster().servers), ::testing::ElementsAre(2));
  EXPECT_EQ(roster().servers[0].index, 0u);
  EXPECT_TRUE(roster().is_complete());
  lose(12);
  EXPECT_FALSE(staffing_->may_close_vacancies()) << "one is not enough";
}

TEST_F(StaffingTest, WithoutAServerNoPlaceGoes) {
  begin();
  lose(1);
  EXPECT_TRUE(staffing_->may_close_vacancies());
  lose(2);
  EXPECT_FALSE(staffing_->may_close_vacancies());
}

TEST_F(StaffingTest, AfterMishapsANodeWaitsUnlessItIsNeeded) {
  begin();
  join(worker(13));
  for (int i = 0; i < 4; ++i) staffing_->suspects().count_mishap(worker(13), at(100), at(1));
  const StaffingSearch search{.now = at(2)};
  EXPECT_EQ(staffing_->next_idle(NodeRole::kWorker, nullptr, search), nullptr);
  EXPECT_EQ(staffing_->idle_workers(at(2)), 0u);
  staffing_->suspects().on_proved(worker(13));
  EXPECT_EQ(staffing_->idle_workers(at(2)), 1u);
}

TEST_F(StaffingTest, WhoDoubtsAGoodCheckpointIsTakenOnlyWhenNeeded) {
  begin();
  join(worker(13));
  const SnapshotId snapshot = snapshot_id(Epoch(3), 10);
  bool again = true;
  EXPECT_THAT(staffing_->suspects().add_doubt(snapshot, "10.0.0.13", again), SizeIs(1));
  EXPECT_FALSE(again);
  EXPECT_EQ(staffing_->next_idle(NodeRole::kWorker, nullptr, {.now = at(1)}), nullptr);
  EXPECT_NE(staffing_->next_idle(NodeRole::kWorker, nullptr, {.now = at(1), .needed = true}),
            nullptr);
  staffing_->suspects().add_doubt(snapshot, "10.0.0.13", again);
  EXPECT_TRUE(again);
  checkpoints_.set_unreadable(snapshot);
  EXPECT_NE(staffing_->next_idle(NodeRole::kWorker, nullptr, {.now = at(1)}), nullptr)
      << "it was right";
}

TEST_F(StaffingTest, ACpuIsTakenBesideGpusOnlyWhenNeeded) {
  NodeInfo gpu = worker(11), other_gpu = worker(12), cpu = worker(13);
  gpu.device = other_gpu.device = "cuda";
  cpu.device = "cpu";
  begin({.workers = 2, .servers = 1}, {server(1), gpu, other_gpu});
  lose(12);
  join(cpu);
  EXPECT_TRUE(staffing_->would_slow_all(cpu));
  EXPECT_THAT(staffing_->fill_vacancies({.now = at(1)}), HasSubstr("worker 1"));
  EXPECT_EQ(staffing_->fill_vacancies({.now = at(1), .needed = true}), "");
}

TEST_F(StaffingTest, TakesAsManyMoreWorkersAsAreAllowed) {
  begin({.min_workers = 2,
         .max_workers = 6,
         .allows = [](std::uint32_t, std::uint32_t workers) { return workers % 2 == 0; }},
        {server(1), worker(11), worker(12)});
  EXPECT_FALSE(staffing_->is_full());
  for (std::uint64_t id = 13; id < 16; ++id) join(worker(id));
  EXPECT_EQ(staffing_->most_workers(at(1)), 5u);
  staffing_->add_workers(at(1));
  EXPECT_THAT(ids(roster().workers), ::testing::ElementsAre(11, 12, 13, 14));
  EXPECT_TRUE(roster().workers[3].is_untried);
  staffing_->shrink_to_trained();
  EXPECT_THAT(roster().workers, SizeIs(2));
  EXPECT_TRUE(staffing_->is_full()) << "more do not fit";
}

TEST_F(StaffingTest, ANewIterationProvesWhoMadeIt) {
  begin();
  roster().workers[0].is_untried = true;
  staffing_->suspects().count_mishap(worker(11), at(0), at(1));
  staffing_->suspects().add_unreachable(NodeId(11), NodeId(1), Epoch(1));
  staffing_->on_new_iteration();
  EXPECT_FALSE(roster().workers[0].is_untried);
  EXPECT_FALSE(staffing_->suspects().has_mishaps(worker(11)));
  EXPECT_EQ(staffing_->suspects().cut_off_from(NodeId(11)), 0u);
}

TEST_F(StaffingTest, BlamesTheOneThatMoreOthersDoNotReach) {
  begin();
  Suspects& suspects = staffing_->suspects();
  Participant& first = roster().workers[0];
  Participant& second = roster().workers[1];
  EXPECT_EQ(&suspects.cut_off(first, nullptr), &first) << "the other one is not known";
  EXPECT_EQ(&suspects.cut_off(first, &second), &second) << "the later one costs less";
  EXPECT_EQ(&suspects.cut_off(first, &roster().servers[0]), &first) << "a worker costs less";
  first.is_untried = true;
  EXPECT_EQ(&suspects.cut_off(first, &second), &first) << "a newcomer";
  suspects.add_unreachable(NodeId(12), NodeId(1), Epoch(1));
  EXPECT_EQ(&suspects.cut_off(first, &second), &second) << "more do not reach it";
}

TEST_F(StaffingTest, SparesNoServerWhoseDataAreNeeded) {
  begin();
  const CheckpointManifest source = manifest({"store1"});
  EXPECT_FALSE(staffing_->can_do_without(roster().servers[0], &source, at(1)));
  EXPECT_TRUE(staffing_->can_do_without(roster().servers[1], &source, at(1)));
  EXPECT_TRUE(staffing_->can_do_without(roster().servers[0], nullptr, at(1)));
}

TEST_F(StaffingTest, SparesAWorkerThatAnotherCanReplace) {
  begin({.workers = 2, .servers = 1, .min_workers = 2}, {server(1), worker(11), worker(12)});
  EXPECT_FALSE(staffing_->can_do_without(roster().workers[0], nullptr, at(1)));
  join(worker(13));
  EXPECT_TRUE(staffing_->can_do_without(roster().workers[0], nullptr, at(1)));
}

TEST_F(StaffingTest, AnAddressOfTwoNodesNamesNeither) {
  begin();
  EXPECT_EQ(staffing_->member_at(worker(11).address)->id, NodeId(11));
  NodeInfo same = worker(13);
  same.address = worker(11).address;
  join(same);
  EXPECT_EQ(staffing_->member_at(worker(11).address), nullptr);
  EXPECT_EQ(staffing_->member_at(""), nullptr);
}

}  // namespace
}  // namespace poseidon::staffing_test
