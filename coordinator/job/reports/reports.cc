#include "coordinator/job/reports/reports.h"

#include <algorithm>

#include "common/base/check.h"

namespace poseidon {

const char* refusal_name(Refusal refusal) {
  switch (refusal) {
    case Refusal::kMalformed:
      return "malformed";
    case Refusal::kNotJoined:
      return "not_joined";
    case Refusal::kNotInJob:
      return "not_in_job";
    case Refusal::kStaleEpoch:
      return "stale_epoch";
    case Refusal::kWrongState:
      return "wrong_state";
    case Refusal::kWrongIteration:
      return "wrong_iteration";
    case Refusal::kDuplicate:
      return "duplicate";
    case Refusal::kVersion:
      return "version";
    case Refusal::kLate:
      return "late";
    case Refusal::kCount:
      break;
  }
  return "unknown";
}

bool is_harmless(Refusal refusal) {
  return refusal == Refusal::kStaleEpoch || refusal == Refusal::kDuplicate ||
         refusal == Refusal::kLate;
}

WorkerRank IterationCombiner::slowest() const {
  const auto it = std::min_element(next_.begin(), next_.end());
  return WorkerRank(static_cast<std::uint32_t>(it - next_.begin()));
}

std::optional<IterationResult> IterationCombiner::add(WorkerRank rank, double loss,
                                                      Nanoseconds ended) {
  const auto index = static_cast<std::size_t>(next(rank) - completed_);
  POSEIDON_CHECK(index <= pending_.size(), "reports of a rank come in order");
  if (index == pending_.size()) {
    pending_.push_back({.losses = std::vector<double>(next_.size(), 0.0), .ended = ended});
  }
  Pending& pending = pending_[index];
  pending.losses[rank.value()] = loss;
  pending.ended = std::max(pending.ended, ended);
  ++next_[rank.value()];
  if (next(slowest()) == completed_) return std::nullopt;

  // In rank order, so that the sum has the same bits whoever came last.
  double sum = 0.0;
  for (const double value : pending_.front().losses) sum += value;
  const IterationResult result{.iteration = completed_++,
                               .loss = sum / static_cast<double>(next_.size()),
                               .ended = pending_.front().ended};
  pending_.pop_front();
  return result;
}

void IterationCombiner::skip_to(Iteration first) {
  for (Iteration& next : next_) next = std::max(next, first);
  while (completed_ < first) {
    ++completed_;
    if (!pending_.empty()) pending_.pop_front();
  }
}

std::optional<TestResult> TestCombiner::add(WorkerRank rank, Iteration iteration,
                                            const TestPart& part) {
  POSEIDON_CHECK(expects(rank, iteration), "a test is reported once, in order");
  last_[rank.value()] = iteration;
  auto& parts = pending_[iteration];
  parts.resize(workers_);
  parts[rank.value()] = part;
  if (!std::all_of(parts.begin(), parts.end(), [](const auto& p) { return p.has_value(); })) {
    return std::nullopt;
  }
  TestPart all;
  for (const auto& p : parts) {
    all.loss_sum += p->loss_sum;
    all.correct += p->correct;
    all.samples += p->samples;
  }
  pending_.erase(iteration);
  if (all.samples == 0) return std::nullopt;
  const auto samples = static_cast<double>(all.samples);
  return TestResult{.iteration = iteration,
                    .loss = all.loss_sum / samples,
                    .accuracy = static_cast<double>(all.correct) / samples};
}

void RateWindow::add(Nanoseconds now, double count) {
  if (!samples_.empty()) now = std::max(now, samples_.newest().time);
  samples_.add(now, count);
}

double RateWindow::per_second(Nanoseconds now) const {
  if (samples_.size() < 2) return 0.0;
  // The window ends now, be the last sample old: what has come to a stand still shows.
  std::size_t first = 0;
  while (first + 2 < samples_.size() && samples_[first + 1].time <= now - samples_.kLength) ++first;
  const double elapsed = seconds(now - samples_[first].time);
  return elapsed > 0.0 ? (samples_.newest().totals - samples_[first].totals) / elapsed : 0.0;
}

}  // namespace poseidon
