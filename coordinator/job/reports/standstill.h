#pragma once

// Finds out that a job stands still although its nodes are well: what each node says that it waits
// for has not changed, and no iteration ends. Pure.
//
// Called by: coordinator/job/training.h, with each heartbeat and iteration, and when time passes;
// it tells people, and has the job recover. Calls: nothing; common/probes/awaited.h is what nodes
// tell.
//
// A worker that waits for data says so; one that says nothing computes, or reads samples. When all
// wait, and nothing of what they wait for arrives, nobody will ever go on. When one computes, it
// may only be slow, so that the job is given more time.

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "common/probes/awaited.h"
#include "coordinator/job/staffing/roster.h"

namespace poseidon {

struct StandstillOptions {
  Nanoseconds least = std::chrono::seconds(30);  ///< --progress-timeout-s
  int iterations = 10;                           ///< so many times the slowest of the recent ones
  /// Before a recovery, where a worker computes.
  Nanoseconds least_computing = std::chrono::minutes(5);
};

/// One epoch's. One thread only.
class Standstill {
 public:
  explicit Standstill(const StandstillOptions& options) : options_(options) {}

  /// Another epoch begins. How long iterations took stays.
  void begin_epoch(Nanoseconds now);
  /// What the node waits for, as of this heartbeat; empty: it works.
  void on_awaited(NodeId from, std::vector<AwaitedData> awaited, Nanoseconds now);
  /// An iteration is complete.
  void on_iteration(Nanoseconds now);
  /// So long nobody could be heard.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now);

  enum class Verdict { kNone, kAlarm, kRecover };
  struct Look {
    Verdict verdict = Verdict::kNone;
    Nanoseconds lasts{0};
  };
  /// `workers`: those that have something left to do. `quiet`: since the last report of any. While
  /// an epoch is being prepared, only workers that all wait are a standstill.
  Look look(const std::vector<NodeId>& workers, bool is_preparing, Nanoseconds quiet,
            Nanoseconds now) const;

  /// "worker 1 (a:1) waits for chunk 3 of layer fc6 from server 0 (b:1), which waits for worker 0
  /// (c:1)". One sentence per worker and server that waits, the first few.
  std::string text(const Plan& plan, const Roster& roster) const;

 private:
  static constexpr std::size_t kRecent = 8;

  const StandstillOptions options_;
  std::map<NodeId, std::vector<AwaitedData>> awaited_;
  Nanoseconds changed_{0};  ///< when anything of awaited_ last changed
  std::optional<Nanoseconds> last_iteration_;
  std::deque<Nanoseconds> recent_;  ///< how long the last iterations took
};

}  // namespace poseidon
