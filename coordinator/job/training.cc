#include "coordinator/job/training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

std::string json_line(const nlohmann::ordered_json& json) { return json.dump(); }

}  // namespace

void Training::resume(Iteration completed, std::optional<TestResult> test) {
  furthest_ = completed;
  test_ = test;
}

void Training::on_iteration(const Participant& worker, Iteration iteration, double loss,
                            Nanoseconds age, Nanoseconds now, JobActions& actions) {
  const WorkerRank rank(worker.index);
  const Iteration expected = job_.run->iterations.next(rank);
  if (job_.description.programs.end_it && iteration == expected && iteration >= job_.iterations) {
    ending_.fail_apart(worker, now, actions);
    return;
  }
  if (iteration != expected || iteration >= job_.iterations) {
    refuse(actions, iteration < expected ? Refusal::kDuplicate : Refusal::kWrongIteration,
           absl::StrFormat("report of iteration %d from %s; %d of %d comes next", iteration,
                           participant_text(worker), expected, job_.iterations));
    return;
  }
  job_.states.note_progress(now);
  // A report that was kept while the stream was broken shows which nodes worked then, not now.
  if (iteration >= job_.run->iterations.newest() && iteration >= worker.kept_until) ++advances_;
  // A program may not tell its loss.
  const bool is_unknown = job_.description.programs.train_it && std::isnan(loss);
  if (!std::isfinite(loss) && !is_unknown) {
    ending_.fail(
        absl::StrFormat("the loss of iteration %d on %s is %f: lower optimizer.learning_rate or "
                        "look at the data",
                        iteration, participant_text(worker), loss),
        now, actions);
    return;
  }
  if (job_.run->iterations.too_far_ahead(rank)) {
    const Participant& slow = job_.workers()[job_.run->iterations.slowest().value()];
    ending_.fail(absl::StrFormat("%s has reported %d iterations, %s is %d ahead of it",
                                 participant_text(slow), job_.run->iterations.completed(),
                                 participant_text(worker), IterationCombiner::kMaxAhead),
                 now, actions);
    return;
  }
  if (const auto result = job_.run->iterations.add(rank, loss, now - age)) {
    standstill_.on_iteration(now);
    complete_iteration(*result, actions);
  }
}

void Training::complete_iteration(const IterationResult& result, JobActions& actions) {
  job_.run->loss.reset();
  if (std::isfinite(result.loss)) job_.run->loss = result.loss;
  job_.checkpoints.on_loss(result.iteration, job_.run->loss);
  if (job_.run->iterations.completed() > furthest_) {
    furthest_ = job_.run->iterations.completed();
    recovery_.on_new_iteration();
    job_.staffing.on_new_iteration();
  }
  const double images_per_s = job_.pace.on_iteration(result.ended, images_done());
  actions.emplace_back(AppendMetrics{
      .line = json_line({{"iteration", result.iteration},
                         {"loss", result.loss},
                         {"learning_rate", job_.run->elastic.learning_rate_factor *
                                               job_.description.learning_rate(result.iteration)},
                         {"images_per_s", images_per_s}}),
      .reaches = snapshot_id(job_.run->epoch, result.iteration + 1)});
}

std::vector<NodeId> Training::needed_to_advance() const {
  return job_.roster().needed_to_advance(*job_.run->plan);
}

bool Training::others_have_finished(const std::vector<NodeId>& nodes) const {
  if (job_.state() != JobState::kRunning) return false;
  std::size_t others = 0;
  for (const Participant& worker : job_.workers()) {
    if (std::ranges::find(nodes, worker.node.id) != nodes.end()) continue;
    if (worker.state != ParticipantState::kFinished) return false;
    ++others;
  }
  return others > 0;
}

/// In this epoch, by all workers.
double Training::images_done() const {
  return static_cast<double>(job_.run->iterations.completed() - job_.run->first_iteration) *
         static_cast<double>(job_.run->elastic.batch_size) *
         static_cast<double>(job_.workers().size());
}

std::optional<Iteration> Training::test_under_way() const {
  if (job_.state() != JobState::kRunning || !job_.description.test_every) return std::nullopt;
  const Iteration steps = job_.run->iterations.completed();
  const Iteration every = *job_.description.test_every;
  const bool is_due = steps == job_.iterations || (every > 0 && steps % every == 0);
  return steps > 0 && is_due && !job_.run->tests.are_told(steps) ? std::optional(steps)
                                                                 : std::nullopt;
}

void Training::on_test(const Participant& worker, Iteration iteration, const TestPart& part,
                       Nanoseconds now, JobActions& actions) {
  const WorkerRank rank(worker.index);
  const std::string who = participant_text(worker);
  // 2^40 samples: beyond any test set, and the sum over ranks cannot wrap.
  if (part.correct > part.samples || part.samples > (std::uint64_t{1} << 40) || iteration < 0 ||
      iteration > job_.iterations || !job_.run->tests.has_room(iteration)) {
    refuse(actions, Refusal::kMalformed,
           absl::StrFormat("TestReport from %s: %d of %d correct at iteration %d", who,
                           part.correct, part.samples, iteration));
    return;
  }
  if (!job_.run->tests.expects(rank, iteration)) {
    refuse(actions, Refusal::kDuplicate,
           absl::StrFormat("test of iteration %d again from %s", iteration, who));
    return;
  }
  job_.states.note_progress(now);
  if (!std::isfinite(part.loss_sum)) {
    ending_.fail(absl::StrFormat("the test loss after %d iterations on %s is %f", iteration, who,
                                 part.loss_sum),
                 now, actions);
    return;
  }
  if (const auto result = job_.run->tests.add(rank, iteration, part)) {
    test_ = *result;
    actions.emplace_back(AppendMetrics{.line = json_line({{"iteration", result->iteration},
                                                          {"test_loss", result->loss},
                                                          {"test_accuracy", result->accuracy}}),
                                       .reaches = std::nullopt});
    job_.log(absl::StrFormat("after %d iterations test loss %.4f, accuracy %.4f", result->iteration,
                             result->loss, result->accuracy),
             actions, LogLine::Kind::kRoutine);
  }
}

void Training::on_batches(NodeId from, std::uint64_t batches, Nanoseconds now) {
  Participant* worker = job_.roster().find(from);
  if (worker == nullptr || job_.state() != JobState::kRunning || is_lost(*worker)) return;
  const std::uint64_t before = std::exchange(worker->batches, batches);
  if (batches == before) return;
  job_.states.note_progress(now);
  // Each epoch counts anew. No worker makes more than so many between two heartbeats.
  constexpr std::uint64_t kMostAtOnce = 1 << 20;
  passes_ += std::min(batches > before ? batches - before : batches, kMostAtOnce);
}

void Training::on_awaited(NodeId from, std::vector<AwaitedData> awaited, Nanoseconds now) {
  const Participant* const node = job_.roster().find(from);
  if (node == nullptr || is_lost(*node) || job_.run->plan == nullptr) return;
  const Plan& plan = *job_.run->plan;
  std::erase_if(awaited, [&plan](const AwaitedData& data) {
    return data.layer.value() >= plan.layers.size() ||
           (data.chunk && data.chunk->value() >= plan.chunks.size());
  });
  standstill_.on_awaited(from, std::move(awaited), now);
}

/// Those with something left to do before the epoch trains, or ends.
std::vector<NodeId> Training::busy_workers() const {
  std::vector<NodeId> busy;
  for (const Participant& worker : job_.workers()) {
    const bool is_busy =
        worker.state == ParticipantState::kRunning || worker.state == ParticipantState::kPreparing;
    if (is_busy) busy.push_back(worker.node.id);
  }
  return busy;
}

void Training::tick(Nanoseconds now, JobActions& actions) {
  const bool prepares = job_.state() == JobState::kPreparingWorkers;
  if (!prepares && job_.state() != JobState::kRunning) {
    standstill_lasts_ = Nanoseconds(0);
    return;
  }
  if (watched_ != job_.run->epoch) {
    watched_ = job_.run->epoch;
    standstill_lasts_ = Nanoseconds(0);
    standstill_.begin_epoch(now);
  }
  const Standstill::Look look =
      standstill_.look(busy_workers(), prepares, job_.states.quiet(now), now);
  const Nanoseconds before = std::exchange(standstill_lasts_, look.lasts);
  if (look.verdict == Standstill::Verdict::kNone) {
    if (before == Nanoseconds(0)) return;
    job_.message.clear();
    job_.log("goes on", actions);
    return;
  }
  const std::string text = absl::StrFormat("no progress for %.0f s after %d iterations: %s",
                                           seconds(look.lasts), job_.run->iterations.completed(),
                                           standstill_.text(*job_.run->plan, job_.roster()));
  job_.message = text;
  if (before == Nanoseconds(0)) job_.log(text, actions, LogLine::Kind::kAlarm);
  if (look.verdict != Standstill::Verdict::kRecover) return;
  standstill_lasts_ = Nanoseconds(0);
  recovery_.recover(EpochEnd::kStandstill, text, /*in_memory=*/true, now, actions);
}

}  // namespace poseidon
