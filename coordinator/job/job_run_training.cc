// The training's part of JobRun: what workers report of iterations and tests, and the lines that
// come of it (job_run.cc has the job's life).

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "coordinator/job/job_run.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

std::string json_line(const nlohmann::ordered_json& json) { return json.dump(); }

}  // namespace

JobActions JobRun::on_iteration(NodeId from, Epoch epoch, Iteration iteration, double loss,
                                Nanoseconds now, Nanoseconds age) {
  JobActions actions;
  const Participant* worker = expect_worker(from, epoch, "IterationReport", actions);
  if (worker == nullptr) return actions;
  const WorkerRank rank(worker->index);
  const Iteration expected = run_->iterations.next(rank);
  if (iteration != expected || iteration >= description_.iterations) {
    refuse(actions, iteration < expected ? Refusal::kDuplicate : Refusal::kWrongIteration,
           absl::StrFormat("report of iteration %d from %s; %d of %d comes next", iteration,
                           participant_text(*worker), expected, description_.iterations));
    return actions;
  }
  states_.note_progress(now);
  // What was kept while nobody heard it shows who was at work then, not who is now.
  if (iteration >= run_->iterations.newest() && iteration >= worker->kept_until) ++advances_;
  if (!std::isfinite(loss)) {
    end(false,
        absl::StrFormat("the loss of iteration %d on %s is %f: lower optimizer.learning_rate or "
                        "look at the data",
                        iteration, participant_text(*worker), loss),
        now, actions);
    return actions;
  }
  if (run_->iterations.too_far_ahead(rank)) {
    const Participant& slow = workers_[run_->iterations.slowest().value()];
    end(false,
        absl::StrFormat("%s has reported %d iterations, %s is %d ahead of it",
                        participant_text(slow), run_->iterations.completed(),
                        participant_text(*worker), IterationCombiner::kMaxAhead),
        now, actions);
    return actions;
  }
  if (const auto result = run_->iterations.add(rank, loss, now - age)) {
    complete_iteration(*result, actions);
  }
  return actions;
}

std::vector<NodeId> JobRun::needed_to_advance() const {
  return run_->needed_to_advance(workers_, servers_);
}

bool JobRun::others_have_finished(const std::vector<NodeId>& nodes) const {
  if (state() != JobState::kRunning) return false;
  std::size_t others = 0;
  for (const Participant& worker : workers_) {
    if (std::ranges::find(nodes, worker.node.id) != nodes.end()) continue;
    if (worker.state != ParticipantState::kFinished) return false;
    ++others;
  }
  return others > 0;
}

/// In this epoch.
double JobRun::images_done() const {
  return static_cast<double>(run_->iterations.completed() - first_iteration_) *
         static_cast<double>(elastic_.batch_size) * static_cast<double>(workers_.size());
}

void JobRun::complete_iteration(const IterationResult& result, JobActions& actions) {
  loss_ = result.loss;
  checkpoints_.on_loss(result.iteration, result.loss);
  if (run_->iterations.completed() > furthest_) {
    furthest_ = run_->iterations.completed();
    idle_recoveries_.got_on();
    forget_mishaps();
  }
  const double images_per_s = pace_.on_iteration(result.ended, images_done());
  actions.emplace_back(AppendMetrics{
      .line = json_line({{"iteration", result.iteration},
                         {"loss", result.loss},
                         {"learning_rate", elastic_.learning_rate_factor *
                                               description_.learning_rate(result.iteration)},
                         {"images_per_s", images_per_s}}),
      .reaches = snapshot_id(epoch_, result.iteration + 1)});
}

/// How many steps those parameters have seen that are being tested: due, and not told of by all.
std::optional<Iteration> JobRun::test_under_way() const {
  if (state() != JobState::kRunning || !description_.test_every) return std::nullopt;
  const Iteration steps = run_->iterations.completed();
  const Iteration every = *description_.test_every;
  const bool is_due = steps == description_.iterations || (every > 0 && steps % every == 0);
  return steps > 0 && is_due && !run_->tests.are_told(steps) ? std::optional(steps) : std::nullopt;
}

JobActions JobRun::on_test(NodeId from, Epoch epoch, Iteration iteration, const TestPart& part,
                           Nanoseconds now) {
  JobActions actions;
  const Participant* worker = expect_worker(from, epoch, "TestReport", actions);
  if (worker == nullptr) return actions;
  const WorkerRank rank(worker->index);
  const std::string who = participant_text(*worker);
  // 2^40 samples: beyond any test set, and the sum over ranks cannot wrap.
  if (part.correct > part.samples || part.samples > (std::uint64_t{1} << 40) || iteration < 0 ||
      iteration > description_.iterations || !run_->tests.has_room(iteration)) {
    refuse(actions, Refusal::kMalformed,
           absl::StrFormat("TestReport from %s: %d of %d correct at iteration %d", who,
                           part.correct, part.samples, iteration));
    return actions;
  }
  if (!run_->tests.expects(rank, iteration)) {
    refuse(actions, Refusal::kDuplicate,
           absl::StrFormat("test of iteration %d again from %s", iteration, who));
    return actions;
  }
  states_.note_progress(now);
  if (!std::isfinite(part.loss_sum)) {
    end(false,
        absl::StrFormat("the test loss after %d iterations on %s is %f", iteration, who,
                        part.loss_sum),
        now, actions);
    return actions;
  }
  if (const auto result = run_->tests.add(rank, iteration, part)) {
    test_ = *result;
    actions.emplace_back(AppendMetrics{.line = json_line({{"iteration", result->iteration},
                                                          {"test_loss", result->loss},
                                                          {"test_accuracy", result->accuracy}}),
                                       .reaches = std::nullopt});
    actions.emplace_back(
        LogLine{absl::StrFormat("job %s: after %d iterations test loss %.4f, accuracy %.4f",
                                description_.id, result->iteration, result->loss, result->accuracy),
                LogLine::Kind::kRoutine});
  }
  return actions;
}

void JobRun::on_batches(NodeId from, std::uint64_t batches, Nanoseconds now) {
  Participant* worker = find(from);
  if (worker == nullptr || state() != JobState::kRunning || is_lost(*worker)) return;
  const std::uint64_t before = std::exchange(worker->batches, batches);
  if (batches == before) return;
  states_.note_progress(now);
  // Each epoch counts anew. No worker makes more than so many between two heartbeats.
  constexpr std::uint64_t kMostAtOnce = 1 << 20;
  counts_.passes += std::min(batches > before ? batches - before : batches, kMostAtOnce);
}

}  // namespace poseidon
