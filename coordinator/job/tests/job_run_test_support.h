#pragma once

// Small jobs of two workers and two servers: one for tests of the way to the end of its first
// epoch, and one for tests of its recovery.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/job/job_run.h"
#include "coordinator/planning/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon {

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}
inline constexpr Iteration kIterations = 12;

/// Servers have nodes below 100 and a store of their own, or another's.
inline NodeInfo node(std::uint64_t id, std::uint64_t store = 0) {
  NodeInfo info;
  info.id = NodeId(id);
  info.role = id < 100 ? NodeRole::kServer : NodeRole::kWorker;
  info.address = "10.0.0." + std::to_string(id) + ":4711";
  if (id < 100) {
    info.store_identity = std::string(30, 'a') + std::to_string(10 + (store > 0 ? store : id));
  }
  return info;
}

inline Departure lost(const NodeInfo& node) {
  return {.node = node, .reason = "broke its stream", .silent = at(0.1)};
}

inline JobDescription description() {
  JobDescription d;
  d.id = "digits-7";
  d.name = "digits";
  d.epoch = Epoch(7);
  d.workers = 2;
  d.servers = 2;
  d.batch_size = 32;
  d.iterations = kIterations;
  d.learning_rate = [](Iteration) { return 0.5; };
  d.layers = {"fc"};
  d.why_no_calibration = [](const auto&, const auto&) { return "a test plans without"; };
  d.make_plan = [](JobDescription::PlanRequest wanted) {
    PlannerInput input{.layers = {{"fc", "fully_connected", {10, 1000}, 10010, true}},
                       .batch_size = 32,
                       .epoch = wanted.epoch,
                       .worker_addresses = std::move(wanted.workers),
                       .server_addresses = std::move(wanted.servers),
                       .sync = {}};
    input.sync.chunk_bytes = 4096;
    if (wanted.keep) input.sync.plan = plan_pin_to_json(*wanted.keep);
    input.leaders = std::move(wanted.leaders);
    input.worker_machines = std::move(wanted.worker_machines);
    input.server_machines = std::move(wanted.server_machines);
    return make_plan(input);
  };
  return d;
}

/// A job of two to four workers whose batch of all stays.
inline JobDescription elastic(std::int64_t global_batch) {
  JobDescription d = description();
  d.workers = 0;
  d.min_workers = 2;
  d.max_workers = 4;
  d.with_workers = [global_batch](std::uint32_t,
                                  std::uint32_t workers) -> absl::StatusOr<ElasticJob> {
    if (global_batch % workers != 0) return absl::InvalidArgumentError("not divisible");
    return ElasticJob{.job_json = "with " + std::to_string(workers),
                      .batch_size = global_batch / workers,
                      .learning_rate_factor = 2.0};
  };
  return d;
}

template <typename T>
std::vector<T> only(const JobActions& actions) {
  std::vector<T> found;
  for (const JobAction& action : actions) {
    if (const T* a = std::get_if<T>(&action)) found.push_back(*a);
  }
  return found;
}

/// Newcomers are taken in after 2 s.
inline JobRunOptions growth_options() {
  JobRunOptions options;
  options.growth_delay = std::chrono::seconds(2);
  return options;
}

/// Two workers (nodes 101, 102) and two servers (nodes 1, 2), training.
class RecoveryTest : public ::testing::Test {
 protected:
  void SetUp() override { begin(description()); }

  void begin(const JobDescription& d) {
    members_ = {node(1), node(2), node(101), node(102)};
    job_.emplace(growth_options(), d, at(0));
    job_->on_members(members_, at(1));
    get_ready(2);
    ASSERT_EQ(job_->state(), JobState::kRunning);
  }
  void get_ready(double now) {
    for (const auto* group : {&job_->view().roster.servers, &job_->view().roster.workers}) {
      for (const Participant& p : *group) job_->on_ready(p.node.id, job_->epoch(), at(now));
    }
  }
  JobActions members_now(double now) { return job_->on_members(members_, at(now)); }
  void join(const NodeInfo& node, double now) {
    members_.push_back(node);
    actions_ = members_now(now);
  }
  void lose(std::uint64_t id, double now) {
    const NodeInfo gone = node(id);
    std::erase_if(members_, [&](const NodeInfo& n) { return n.id == gone.id; });
    actions_ = job_->on_departure(lost(gone), at(now));
    members_now(now);
  }
  void train(Iteration from, Iteration to, double now = 3) {
    for (Iteration i = from; i < to; ++i) {
      for (const Participant& w : job_->view().roster.workers) {
        job_->on_iteration(w.node.id, job_->epoch(), i, 1.0, at(now));
      }
    }
  }
  void halt(std::uint64_t id, Iteration oldest, Iteration newest, double now) {
    actions_ = job_->on_halted(NodeId(id), job_->epoch(), {oldest, newest}, at(now));
  }
  /// Both servers have stored it, and the manifest is written.
  void commit(Iteration iteration, double now) {
    JobActions actions;
    for (const Participant& server : job_->view().roster.servers) {
      if (server.state == ParticipantState::kLost) continue;
      actions = job_->on_checkpoint_report(server.node.id, job_->epoch(),
                                           {.iteration = iteration, .stored = true, .bytes = 10}, 1,
                                           at(now));
    }
    const auto writes = only<WriteManifest>(actions);
    ASSERT_THAT(writes, ::testing::SizeIs(1));
    actions_ = job_->on_manifest_written(writes[0].manifest.snapshot, absl::OkStatus(), at(now));
  }

  /// After three iterations, which are saved: the job waits for another one.
  void lose_the_second_worker() {
    train(0, 3);
    lose(102, 4);
    for (const std::uint64_t id : {101, 1, 2}) halt(id, 3, 3, 4.1);
    commit(3, 4.2);
  }

  /// So many of them, 101 and so on, training.
  void begin_with_workers(std::uint32_t count) {
    JobDescription d = description();
    d.workers = count;
    members_ = {node(1), node(2)};
    for (std::uint64_t i = 0; i < count; ++i) members_.push_back(node(101 + i));
    job_.emplace(JobRunOptions{}, d, at(0));
    job_->on_members(members_, at(1));
    get_ready(2);
    ASSERT_EQ(job_->state(), JobState::kRunning);
  }
  /// The next of those with which the job began is lost, and another comes: training again, from
  /// the beginning.
  void lose_and_replace(double now) {
    lose(next_lost_++, now);
    for (const auto* group : job_->view().roster.groups()) {
      for (const Participant& p : *group) {
        if (p.state != ParticipantState::kLost) halt(p.node.id.value(), 0, 0, now);
      }
    }
    join(node(next_lost_ + 500), now);
    job_->on_epoch(job_->epoch().value() + 1, at(now));
    get_ready(now);
    ASSERT_EQ(job_->state(), JobState::kRunning) << now;
  }

  std::vector<NodeInfo> members_;
  std::optional<JobRun> job_;
  JobActions actions_;
  std::uint64_t next_lost_ = 101;
};

// ---- the way to the end of the first epoch ----

inline constexpr Epoch kEpoch(7);

inline NodeInfo node(std::uint64_t id, NodeRole role) {
  NodeInfo info;
  info.id = NodeId(id);
  info.role = role;
  info.address = "10.0.0." + std::to_string(id) + ":4711";
  return info;
}

inline std::vector<NodeInfo> cluster(std::uint64_t workers, std::uint64_t servers) {
  std::vector<NodeInfo> nodes;
  for (std::uint64_t i = 0; i < servers; ++i) nodes.push_back(node(1 + i, NodeRole::kServer));
  for (std::uint64_t i = 0; i < workers; ++i) nodes.push_back(node(11 + i, NodeRole::kWorker));
  return nodes;
}

inline SyncSpec sync_of(const JobDescription::PlanRequest& wanted) {
  SyncSpec sync;
  if (wanted.keep) sync.plan = plan_pin_to_json(*wanted.keep);
  return sync;
}

inline JobDescription description(std::uint32_t workers, std::uint32_t servers) {
  JobDescription d;
  d.id = "digits-7";
  d.name = "digits";
  d.epoch = kEpoch;
  d.workers = workers;
  d.servers = servers;
  d.batch_size = 32;
  d.iterations = 3;
  d.learning_rate = [](Iteration i) { return 0.5 / static_cast<double>(i + 1); };
  d.layers = {"fc"};
  d.why_no_calibration = [](const auto&, const auto&) { return "a test plans without"; };
  d.make_plan = [](JobDescription::PlanRequest wanted) {
    return make_plan({.layers = {{"fc", "fully_connected", {10, 5}, 60, true}},
                      .batch_size = 32,
                      .epoch = wanted.epoch,
                      .worker_addresses = std::move(wanted.workers),
                      .server_addresses = std::move(wanted.servers),
                      .sync = sync_of(wanted),
                      .calibration = std::move(wanted.calibration)});
  };
  return d;
}

// Invariant 3: nothing but one counted refusal.
inline void expect_refused(const JobActions& actions, Refusal refusal) {
  ASSERT_THAT(actions, ::testing::SizeIs(1));
  const auto refusals = only<CountRefusal>(actions);
  ASSERT_THAT(refusals, ::testing::SizeIs(1));
  EXPECT_STREQ(refusal_name(refusals[0].refusal), refusal_name(refusal)) << refusals[0].text;
  EXPECT_THAT(refusals[0].text, ::testing::Not(::testing::IsEmpty()));
}

/// Two workers (nodes 11, 12) and two servers (nodes 1, 2) unless told otherwise.
class JobRunTest : public ::testing::Test {
 protected:
  void begin(std::uint32_t workers = 2, std::uint32_t servers = 2) {
    job_.emplace(JobRunOptions{}, description(workers, servers), at(0));
    actions_ = job_->on_members(cluster(workers, servers), at(1));
  }
  void prepare_servers() {
    begin();
    job_->on_ready(NodeId(1), kEpoch, at(2));
    actions_ = job_->on_ready(NodeId(2), kEpoch, at(3));
  }
  void run() {
    prepare_servers();
    job_->on_ready(NodeId(11), kEpoch, at(4));
    actions_ = job_->on_ready(NodeId(12), kEpoch, at(5));
  }
  JobActions report(std::uint64_t id, Iteration iteration, double loss, double now) {
    return job_->on_iteration(NodeId(id), kEpoch, iteration, loss, at(now));
  }
  void report_all() {
    for (Iteration i = 0; i < 3; ++i) {
      for (const std::uint64_t id : {11, 12}) report(id, i, 1.0, 6.0 + static_cast<double>(i));
    }
  }
  void expect_failed(const JobActions& actions, const std::string& reason, std::size_t stops = 4) {
    EXPECT_EQ(job_->state(), JobState::kFailed);
    const auto sent = only<SendStop>(actions);
    EXPECT_THAT(sent, ::testing::SizeIs(stops));
    for (const SendStop& stop : sent) {
      EXPECT_FALSE(stop.succeeded);
      EXPECT_THAT(stop.reason, ::testing::HasSubstr(reason));
    }
    EXPECT_THAT(job_->progress(at(1e6)).message, ::testing::HasSubstr(reason));
  }

  std::optional<JobRun> job_;
  JobActions actions_;
};

}  // namespace poseidon
