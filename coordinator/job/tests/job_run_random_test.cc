// Nodes that are lost at random, in every state of a job.

#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include "coordinator/job/job_run.h"
#include "coordinator/job/tests/job_run_test_support.h"
#include "coordinator/records/run_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::job_run_random_test {
namespace {

using ::testing::HasSubstr;

/// A cluster that answers the job's actions by its rules, and loses nodes at random.
class RandomCluster {
 public:
  explicit RandomCluster(unsigned seed) : random_(seed) {
    JobDescription d = description();
    job_.emplace(JobRunOptions{}, d, now_);
    for (const std::uint64_t id : {1, 2, 101, 102}) members_.push_back(node(id));
    take(job_->on_members(members_, now_));
  }

  void run() {
    for (int step = 0; step < 20000 && !job_->ended(); ++step) {
      now_ += Milliseconds(draw(50));
      take(job_->tick(now_));
      const int event = draw(100);
      if (event < 60) {
        report();
      } else if (event < 90) {
        answer();
      } else if (event < 93 && losses_ < 12) {
        lose_one();
      } else {
        replace_one();
      }
    }
  }

  std::optional<JobRun> job_;
  std::string metrics_;
  int losses_ = 0;

 private:
  int draw(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  struct Held {
    Epoch epoch;
    std::map<std::uint64_t, Iteration> pushed;  ///< by rank: iterations whose gradients are out
  };

  Iteration done_by_all() const {
    Iteration least = kIterations;
    for (const auto& [rank, count] : held_.pushed) least = std::min(least, count);
    return least;
  }

  void take(const JobActions& actions) {
    for (const JobAction& action : actions) {
      if (const auto* line = std::get_if<AppendMetrics>(&action)) {
        metrics_ += line->line + "\n";
        if (line->reaches) waiting_.emplace_back(action, job_->epoch());  // for the disk
      }
      if (const auto* back = std::get_if<RollBackMetrics>(&action)) {
        metrics_ = metrics_before(metrics_, back->iteration);
      }
      const bool needs_answer = std::holds_alternative<SendAssignment>(action) ||
                                std::holds_alternative<SendHalt>(action) ||
                                std::holds_alternative<SendSave>(action) ||
                                std::holds_alternative<TakeEpoch>(action) ||
                                std::holds_alternative<WriteManifest>(action) ||
                                std::holds_alternative<RemoveManifest>(action);
      if (needs_answer) waiting_.emplace_back(action, job_->epoch());
    }
    if (held_.epoch == job_->epoch() && started_ == (job_->state() == JobState::kRunning)) return;
    started_ = job_->state() == JobState::kRunning;
    if (!started_ || held_.epoch == job_->epoch()) return;
    held_ = {.epoch = job_->epoch(), .pushed = {}};
    for (const Participant& w : job_->view().roster.workers)
      held_.pushed[w.index] = job_->view().run.first_iteration;
  }

  /// One worker finishes an iteration; none is more than one ahead of another.
  void report() {
    if (job_->state() != JobState::kRunning) return;
    const auto& workers = job_->view().roster.workers;
    const Participant& w =
        workers[static_cast<std::size_t>(draw(static_cast<int>(workers.size())))];
    Iteration& count = held_.pushed[w.index];
    if (w.state != ParticipantState::kRunning) return;
    if (count < kIterations) {
      if (count > done_by_all()) return;
      const Iteration iteration = count++;
      if (draw(20) == 0) return lose(w.node);  // its gradients are out, its word is not
      take(job_->on_iteration(w.node.id, job_->epoch(), iteration, 1.0, now_));
      if (iteration % 5 == 4) save(iteration + 1);
    } else if (done_by_all() == kIterations) {
      take(job_->on_finished(w.node.id, job_->epoch(), now_));
      if (w.index == 0) take(job_->on_model_stored(job_->epoch(), now_));
    }
  }

  /// The servers' part of a periodic checkpoint; sometimes one of them fails.
  void save(Iteration version) {
    if (done_by_all() != version) return;
    for (const Participant& s : job_->view().roster.servers) {
      take(job_->on_checkpoint_report(
          s.node.id, job_->epoch(),
          {.iteration = version, .stored = draw(10) > 0, .reason = "full", .bytes = 1}, 1, now_));
    }
  }

  void answer() {
    if (waiting_.empty()) return;
    const auto [action, epoch] = waiting_.front();
    waiting_.erase(waiting_.begin());
    if (std::holds_alternative<TakeEpoch>(action)) return take(job_->on_epoch(next_epoch_++, now_));
    if (const auto* line = std::get_if<AppendMetrics>(&action)) {
      return take(job_->on_metrics_written(*line->reaches));
    }
    if (const auto* remove = std::get_if<RemoveManifest>(&action)) {
      return take(job_->on_manifest_removed(remove->manifest.snapshot, absl::OkStatus()));
    }
    if (const auto* write = std::get_if<WriteManifest>(&action)) {
      const absl::Status status =
          draw(5) == 0 ? absl::ResourceExhaustedError("full") : absl::OkStatus();
      return take(job_->on_manifest_written(write->manifest.snapshot, status, now_));
    }
    if (const auto* assignment = std::get_if<SendAssignment>(&action)) {
      if (is_here(assignment->node)) take(job_->on_ready(assignment->node, epoch, now_));
    } else if (const auto* halt = std::get_if<SendHalt>(&action)) {
      // All gradients that are out have arrived: chunks are at the version that all pushed, or one
      // before; a server has both.
      const Iteration newest = done_by_all();
      const Iteration oldest = std::max(newest - 1, job_->view().run.first_iteration);
      if (is_here(halt->node)) take(job_->on_halted(halt->node, epoch, {oldest, newest}, now_));
    } else if (const auto* save = std::get_if<SendSave>(&action)) {
      if (!is_here(save->node) || save->node.value() >= 100) return;
      take(job_->on_checkpoint_report(
          save->node, epoch,
          {.iteration = save->iteration, .stored = draw(10) > 0, .reason = "full", .bytes = 1}, 1,
          now_));
    }
  }

  bool is_here(NodeId id) const {
    return std::any_of(members_.begin(), members_.end(),
                       [id](const NodeInfo& n) { return n.id == id; });
  }

  void lose_one() {
    if (!members_.empty()) {
      lose(members_[static_cast<std::size_t>(draw(static_cast<int>(members_.size())))]);
    }
  }
  void lose(const NodeInfo gone) {  // by value: the list changes
    ++losses_;
    std::erase_if(members_, [&](const NodeInfo& n) { return n.id == gone.id; });
    gone_.push_back(gone);
    take(job_->on_departure(lost(gone), now_));
    take(job_->on_members(members_, now_));
  }
  void replace_one() {
    if (gone_.empty()) return;
    NodeInfo back = gone_.front();
    gone_.erase(gone_.begin());
    back.id = NodeId(back.role == NodeRole::kServer ? next_server_++ : next_worker_++);
    members_.push_back(back);
    take(job_->on_members(members_, now_));
  }

  std::mt19937 random_;
  Nanoseconds now_{0};
  std::vector<NodeInfo> members_, gone_;
  std::vector<std::pair<JobAction, Epoch>> waiting_;
  Held held_;
  bool started_ = false;
  std::uint64_t next_server_ = 3, next_worker_ = 103, next_epoch_ = 8;
};

TEST(RandomLosses, EveryRunEndsWithEachLineOfItsMetricsOnce) {
  constexpr unsigned kRuns = 1000;
  int recoveries = 0, done = 0;
  for (unsigned seed = 0; seed < kRuns; ++seed) {
    RandomCluster cluster(seed);
    cluster.run();
    recoveries += cluster.job_->view().recovery.recoveries();
    const std::string message = cluster.job_->progress(at(1e6)).message;
    if (cluster.job_->state() == JobState::kFailed) {
      EXPECT_THAT(message, HasSubstr("in a row")) << seed;
      continue;
    }
    ++done;
    EXPECT_EQ(cluster.job_->state(), JobState::kDone) << seed << ": " << message;
    std::istringstream lines(cluster.metrics_);
    Iteration next = 0;
    for (std::string line; std::getline(lines, line); ++next) {
      EXPECT_THAT(line, HasSubstr("{\"iteration\":" + std::to_string(next) + ",")) << seed;
    }
    EXPECT_EQ(next, kIterations) << seed;
  }
  EXPECT_GT(recoveries, 1000) << "nodes were lost";
  EXPECT_GT(done, kRuns / 2) << "most losses are survived";
}

}  // namespace
}  // namespace poseidon::job_run_random_test
