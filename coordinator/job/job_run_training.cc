// The training's part of JobRun: what workers report of iterations and tests, and the lines that
// come of it (job_run.cc has the job's life).

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "coordinator/job/job_run.h"
#include "coordinator/job/job_run_text.h"
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
  const Iteration expected = iterations_->next(rank);
  if (iteration != expected || iteration >= description_.iterations) {
    refuse(actions, iteration < expected ? Refusal::kDuplicate : Refusal::kWrongIteration,
           absl::StrFormat("report of iteration %d from %s; %d of %d comes next", iteration,
                           participant_text(*worker), expected, description_.iterations));
    return actions;
  }
  last_progress_ = now;
  // What was kept while nobody heard it shows who was at work then, not who is now.
  if (iteration >= iterations_->newest() && iteration >= worker->kept_until) ++advances_;
  if (!std::isfinite(loss)) {
    end(false,
        absl::StrFormat("the loss of iteration %d on %s is %f: lower optimizer.learning_rate or "
                        "look at the data",
                        iteration, participant_text(*worker), loss),
        now, actions);
    return actions;
  }
  if (iterations_->too_far_ahead(rank)) {
    const Participant& slow = workers_[iterations_->slowest().value()];
    end(false,
        absl::StrFormat("%s has reported %d iterations, %s is %d ahead of it",
                        participant_text(slow), iterations_->completed(), participant_text(*worker),
                        IterationCombiner::kMaxAhead),
        now, actions);
    return actions;
  }
  if (const auto result = iterations_->add(rank, loss, now - age)) {
    complete_iteration(*result, actions);
  }
  return actions;
}

std::vector<NodeId> JobRun::needed_to_advance() const {
  std::vector<NodeId> nodes;
  for (const Participant& worker : workers_) nodes.push_back(worker.node.id);
  std::vector<bool> has_layers(servers_.size(), false);
  for (const PlanChunk& chunk : plan_->chunks) has_layers[chunk.server.value()] = true;
  for (const Participant& server : servers_) {
    if (has_layers[server.index]) nodes.push_back(server.node.id);
  }
  return nodes;
}

bool JobRun::others_have_finished(const std::vector<NodeId>& nodes) const {
  if (state_ != JobState::kRunning) return false;
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
  return static_cast<double>(iterations_->completed() - first_iteration_) *
         static_cast<double>(elastic_.batch_size) * static_cast<double>(workers_.size());
}

void JobRun::complete_iteration(const IterationResult& result, JobActions& actions) {
  loss_ = result.loss;
  checkpoints_.on_loss(result.iteration, result.loss);
  if (iterations_->completed() > furthest_) {
    furthest_ = iterations_->completed();
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
  if (state_ != JobState::kRunning || !description_.test_every) return std::nullopt;
  const Iteration steps = iterations_->completed();
  const Iteration every = *description_.test_every;
  const bool is_due = steps == description_.iterations || (every > 0 && steps % every == 0);
  return steps > 0 && is_due && !tests_->are_told(steps) ? std::optional(steps) : std::nullopt;
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
      iteration > description_.iterations || !tests_->has_room(iteration)) {
    refuse(actions, Refusal::kMalformed,
           absl::StrFormat("TestReport from %s: %d of %d correct at iteration %d", who,
                           part.correct, part.samples, iteration));
    return actions;
  }
  if (!tests_->expects(rank, iteration)) {
    refuse(actions, Refusal::kDuplicate,
           absl::StrFormat("test of iteration %d again from %s", iteration, who));
    return actions;
  }
  last_progress_ = now;
  if (!std::isfinite(part.loss_sum)) {
    end(false,
        absl::StrFormat("the test loss after %d iterations on %s is %f", iteration, who,
                        part.loss_sum),
        now, actions);
    return actions;
  }
  if (const auto result = tests_->add(rank, iteration, part)) {
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
  if (worker == nullptr || state_ != JobState::kRunning || is_lost(*worker)) return;
  const std::uint64_t before = std::exchange(worker->batches, batches);
  if (batches == before) return;
  last_progress_ = now;
  // Each epoch counts anew. No worker makes more than so many between two heartbeats.
  constexpr std::uint64_t kMostAtOnce = 1 << 20;
  counts_.passes += std::min(batches > before ? batches - before : batches, kMostAtOnce);
}

}  // namespace poseidon
