#pragma once

// Joins the program's thread and the job's threads: the program's calls wait here for what an epoch
// brings, and an epoch's thread waits here for the program's calls.
//
// Called by: client/client.cc on the program's thread; client/program_framework.h on the job's
// thread; client/program_node.h when the job or the node ends. Calls: client/program_progress.h
// under its mutex. Every wait has a deadline; its message names what is awaited.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/program_memory.h"
#include "client/program_progress.h"
#include "common/base/clock.h"
#include "common/threads/mutex.h"
#include "sync/routes/program_rates.h"

namespace poseidon {

class ProgramLink {
 public:
  /// What a call returns: poseidon_result without its numbers.
  enum class Result { kOk, kInvalid, kRefused, kTimeout, kEnded, kRewound, kFailed };
  struct Outcome {
    Result result = Result::kOk;
    std::string message;  ///< unless kOk
  };

  /// `memory` outlives the link.
  ProgramLink(ProgramMemory* memory, bool gives_rates, Milliseconds join_timeout,
              Milliseconds wait_timeout);

  // ---- on the program's thread ----

  /// The state is the job's afterwards. As after each kRewound.
  Outcome join();
  Outcome gradient(std::size_t layer);
  /// kOk: the norm of the mean gradient is in `norm`.
  Outcome gradient_norm(double& norm);
  /// `rates.tensors` as the model has them.
  Outcome rates(ProgramRates rates);
  Outcome step(double loss);
  Outcome wait(std::size_t layer);
  Outcome wait_all();
  Outcome finish();
  /// The job is to fail with this reason. kOk: it has.
  Outcome fail(const std::string& reason);

  // ---- any thread ----

  Iteration iteration() const { return iteration_; }
  std::int64_t rank() const { return rank_; }
  std::int64_t workers() const { return workers_; }

  // ---- on the job's thread ----

  void prepare(const EpochPlace& place);
  /// `state`: the job's, of the first iteration.
  void begin(std::span<const float> state);
  /// Waits for at most `patience`; kNothing after it.
  ProgramProgress::Action next(Milliseconds patience);
  /// The state as it was when the program ended its last step.
  std::vector<float> state_of_step();
  void landed(std::size_t layer);
  void norm_known(Iteration iteration, double norm);
  /// The program's, of an iteration that kRates names.
  ProgramRates rates_of(Iteration iteration);
  /// How long the program stood still for each layer since the last call.
  std::vector<std::uint64_t> take_stalls();
  void over(const absl::Status& why);
  /// OK unless the program has said that it cannot go on.
  absl::Status failure();
  /// What ends the job's thread's waits when the program says so; null: it waits for nothing.
  void set_cancel(std::function<void(const absl::Status& reason)> cancel);
  bool has_joined();

  // ---- any thread ----

  /// No epoch follows. The first call counts.
  void end(Result result, bool done, const std::string& reason);

 private:
  using Reply = ProgramProgress::Reply;
  using Ask = std::function<Reply(ProgramProgress&)>;

  /// Asks until there is an answer. `call`, `what`: for the message, "poseidon_wait" waits for
  /// "layer fc: the parameters with 12 steps".
  Outcome perform(const char* call, const std::string& what, Nanoseconds deadline, const Ask& ask);
  Outcome outcome_of(const Reply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string situation() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ProgramMemory* const memory_;
  const std::vector<std::string> names_;
  const Milliseconds join_timeout_, wait_timeout_;
  const SystemClock clock_;
  std::atomic<Iteration> iteration_{0};
  std::atomic<std::int64_t> rank_{-1}, workers_{-1};

  Mutex mutex_;
  CondVar changed_;
  ProgramProgress progress_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> job_state_ ABSL_GUARDED_BY(mutex_);   ///< of the epoch's first iteration
  std::vector<float> step_state_ ABSL_GUARDED_BY(mutex_);  ///< of the program's last step
  ProgramRates rates_ ABSL_GUARDED_BY(mutex_);             ///< of the program's iteration
  ProgramRates last_rates_ ABSL_GUARDED_BY(mutex_);        ///< of its last step
  double norm_ ABSL_GUARDED_BY(mutex_) = 0.0;              ///< the newest that is known
  std::vector<std::uint64_t> stall_ns_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> cancel_ ABSL_GUARDED_BY(mutex_);
  std::string last_epoch_ ABSL_GUARDED_BY(mutex_);  ///< why it is over; "": it is not
  struct End {
    Result result = Result::kEnded;
    std::string reason;
  };
  std::optional<End> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
