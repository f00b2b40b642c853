#pragma once

// Combines what the workers report into what the job reports. Pure.
//
// Called by: coordinator/job/training.h, when epoch, state and sender are checked; it writes
// metrics lines. Calls: coordinator/members/sample_window.h.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "coordinator/members/sample_window.h"

namespace poseidon {

/// Why a message was refused; the text is the `reason` label of poseidon_refused_messages_total.
enum class Refusal {
  kMalformed,       ///< a field has a value that no sender of ours makes
  kNotJoined,       ///< the node is no member
  kNotInJob,        ///< the node is a member, but has no part in the job
  kStaleEpoch,      ///< speaks of another epoch
  kWrongState,      ///< right message, wrong moment
  kWrongIteration,  ///< not the iteration that comes next
  kDuplicate,       ///< said before
  kVersion,         ///< another protocol version
  kLate,            ///< of an epoch that is over: was on its way when it ended
  kCount,           ///< number of reasons, not one itself
};
const char* refusal_name(Refusal refusal);  ///< "stale_epoch", ...
/// What healthy nodes send, too, after a cut, after a recovery, or at the end of a job.
bool is_harmless(Refusal refusal);

struct IterationResult {
  Iteration iteration = 0;
  double loss = 0.0;     ///< mean over all workers' samples
  Nanoseconds ended{0};  ///< when its last worker had it
};

/// Every rank reports all iterations from the first on in order; ranks may be apart. An iteration
/// is complete when every rank has reported it: its loss is the sum of the ranks' means in rank
/// order in double, divided by P1 (all have the same batch), whatever order they arrived in.
class IterationCombiner {
 public:
  /// How many iterations the fastest rank may be ahead of the slowest: one may tell all that it has
  /// kept (ReportOutbox::kKeptIterations), and go on, before another one is back.
  static constexpr Iteration kMaxAhead = 2 * 131072;

  /// `first`: all before it were reported in an earlier life.
  explicit IterationCombiner(std::uint32_t workers, Iteration first = 0)
      : next_(workers, first), completed_(first) {}

  /// The iteration that `rank` reports next.
  Iteration next(WorkerRank rank) const { return next_[rank.value()]; }
  /// How many iterations are complete.
  Iteration completed() const { return completed_; }
  /// The iteration that nobody has reported yet.
  Iteration newest() const { return completed_ + static_cast<Iteration>(pending_.size()); }
  /// Whether `rank` would be more than kMaxAhead ahead of the slowest.
  bool too_far_ahead(WorkerRank rank) const { return next(rank) - completed_ >= kMaxAhead; }
  /// Lowest of the ranks that hold back the oldest incomplete iteration.
  WorkerRank slowest() const;

  /// The report of iteration next(rank). The iteration it completes, if it does (never more than
  /// one: reports come in order). `ended`: when this worker had it.
  std::optional<IterationResult> add(WorkerRank rank, double loss, Nanoseconds ended);

  /// Reports of iterations before `first` are lost at some rank that has reported none after: they
  /// will never be complete, and count as if they were.
  void skip_to(Iteration first);

 private:
  std::vector<Iteration> next_;  ///< by rank
  Iteration completed_;
  struct Pending {
    std::vector<double> losses;  ///< by rank
    Nanoseconds ended{0};        ///< of the last so far
  };
  std::deque<Pending> pending_;  ///< iterations from completed_ on
};

/// What one worker has to say of a test: over its share of the samples.
struct TestPart {
  double loss_sum = 0.0;      ///< of the samples' losses
  std::uint64_t correct = 0;  ///< of `samples`
  std::uint64_t samples = 0;
};

struct TestResult {
  Iteration iteration = 0;
  double loss = 0.0;      ///< mean over all test samples
  double accuracy = 0.0;  ///< 0..1
};

/// Every rank reports each test once, in the order of iterations.
class TestCombiner {
 public:
  /// Tests not yet reported by everyone: as many as each worker tells again (ReportOutbox).
  static constexpr std::size_t kMaxPending = 16384;

  /// `first`: tests of iterations before it were reported in an earlier life.
  explicit TestCombiner(std::uint32_t workers, Iteration first = 0)
      : workers_(workers), last_(workers, first - 1) {}
  /// A report of this iteration or later is new.
  Iteration next(WorkerRank rank) const { return last_[rank.value()] + 1; }

  /// Whether all ranks have reported it, or a later one.
  bool are_told(Iteration iteration) const {
    return std::ranges::all_of(last_, [iteration](Iteration last) { return last >= iteration; });
  }
  /// Whether a report of this iteration by this rank is new and in order.
  bool expects(WorkerRank rank, Iteration iteration) const {
    return iteration > last_[rank.value()];
  }
  /// Whether a report of this test can be held until the others' have come.
  bool has_room(Iteration iteration) const {
    return pending_.size() < kMaxPending || pending_.contains(iteration);
  }
  std::size_t pending() const { return pending_.size(); }
  /// The oldest test that somebody has not reported.
  std::optional<Iteration> oldest_pending() const {
    return pending_.empty() ? std::nullopt : std::optional(pending_.begin()->first);
  }
  /// Precondition: expects(). The result once every rank has reported, unless nobody had samples.
  std::optional<TestResult> add(WorkerRank rank, Iteration iteration, const TestPart& part);

 private:
  std::uint32_t workers_;
  std::vector<Iteration> last_;                                        ///< by rank; -1: none
  std::map<Iteration, std::vector<std::optional<TestPart>>> pending_;  ///< by rank
};

/// How fast a count grows over the last seconds.
class RateWindow {
 public:
  /// `now` counts as the last sample's time where it is before that.
  void add(Nanoseconds now, double count);
  /// Per second, from the oldest sample in the window to `now`; 0 before there are two.
  double per_second(Nanoseconds now) const;
  void clear() { samples_.clear(); }

 private:
  SampleWindow<double> samples_;
};

}  // namespace poseidon
