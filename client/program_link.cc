#include "client/program_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

using Outcome = ProgramLink::Outcome;
using Verdict = ProgramProgress::Verdict;

/// How long poseidon_fail waits for the job's end.
constexpr Milliseconds kFailTimeout{10'000};

}  // namespace

ProgramLink::ProgramLink(ProgramMemory* memory, bool gives_rates, Milliseconds join_timeout,
                         Milliseconds wait_timeout)
    : memory_(memory),
      names_(memory->layer_names()),
      join_timeout_(join_timeout),
      wait_timeout_(wait_timeout),
      progress_(names_, gives_rates),
      stall_ns_(names_.size()) {}

// ---- on the program's thread ----

Outcome ProgramLink::join() {
  return perform("poseidon_join", "the job to train", clock_.now() + join_timeout_,
                 [this](ProgramProgress& progress) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                   Reply reply = progress.join();
                   if (reply.verdict == Verdict::kOk) {
                     std::ranges::copy(job_state_, memory_->state().begin());
                   }
                   return reply;
                 });
}

Outcome ProgramLink::gradient(std::size_t layer) {
  return perform("poseidon_gradient", "the parameters to which the job goes back",
                 clock_.now() + wait_timeout_,
                 [layer](ProgramProgress& progress) { return progress.gradient(layer); });
}

Outcome ProgramLink::gradient_norm(double& norm) {
  return perform("poseidon_gradient_norm",
                 absl::StrCat("the gradients of all workers in iteration ", iteration_.load()),
                 clock_.now() + wait_timeout_,
                 [this, &norm](ProgramProgress& progress) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                   Reply reply = progress.norm();
                   if (reply.verdict == Verdict::kOk) norm = norm_;
                   return reply;
                 });
}

Outcome ProgramLink::rates(ProgramRates rates) {
  return perform("poseidon_rates", "the parameters to which the job goes back",
                 clock_.now() + wait_timeout_,
                 [this, &rates](ProgramProgress& progress) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                   Reply reply = progress.rates();
                   if (reply.verdict != Verdict::kOk) return reply;
                   rates_ = std::move(rates);
                   rates_.ahead = progress.rates_are_ahead();
                   return reply;
                 });
}

Outcome ProgramLink::step(double loss) {
  return perform("poseidon_step", "the parameters to which the job goes back",
                 clock_.now() + wait_timeout_,
                 [this, loss](ProgramProgress& progress) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                   Reply reply = progress.step(loss);
                   if (reply.verdict == Verdict::kOk) {
                     last_rates_ = std::exchange(rates_, {});
                     const std::span<const float> state = memory_->state();
                     step_state_.assign(state.begin(), state.end());
                   }
                   return reply;
                 });
}

Outcome ProgramLink::wait(std::size_t layer) {
  const Nanoseconds since = clock_.now();
  bool has_waited = false;
  const std::string what =
      absl::StrCat("layer ", layer < names_.size() ? names_[layer] : absl::StrCat(layer),
                   ": the parameters with ", iteration_.load(), " steps");
  return perform("poseidon_wait", what, since + wait_timeout_,
                 [&](ProgramProgress& progress) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                   Reply reply = progress.wait(layer);
                   if (reply.verdict == Verdict::kWait) {
                     has_waited = true;
                   } else if (has_waited && layer < stall_ns_.size()) {
                     stall_ns_[layer] += static_cast<std::uint64_t>((clock_.now() - since).count());
                   }
                   return reply;
                 });
}

Outcome ProgramLink::wait_all() {
  for (std::size_t l = 0; l < names_.size(); ++l) {
    if (Outcome outcome = wait(l); outcome.result != Result::kOk) return outcome;
  }
  return {};
}

Outcome ProgramLink::finish() {
  return perform("poseidon_finish", "the end of the job", clock_.now() + wait_timeout_,
                 [](ProgramProgress& progress) { return progress.finish(); });
}

Outcome ProgramLink::fail(const std::string& reason) {
  const Nanoseconds deadline = clock_.now() + kFailTimeout;
  const MutexLock lock(mutex_);
  if (!progress_.has_joined()) {
    return {Result::kInvalid, "poseidon_fail: call poseidon_join first"};
  }
  if (failure_.ok()) {
    failure_ = absl::FailedPreconditionError(reason);
    if (cancel_) cancel_(failure_);
  }
  changed_.notify_all();
  while (!end_) {
    const Nanoseconds left = deadline - clock_.now();
    if (left <= Nanoseconds::zero()) {
      return {Result::kTimeout, absl::StrCat("poseidon_fail: the coordinator has not ended the job "
                                             "within ",
                                             Milliseconds(kFailTimeout).count() / 1000, " s")};
    }
    changed_.wait_for(mutex_, left);
  }
  return {};
}

Outcome ProgramLink::perform(const char* call, const std::string& what, Nanoseconds deadline,
                             const Ask& ask) {
  const MutexLock lock(mutex_);
  while (true) {
    const Reply reply = ask(progress_);
    publish();
    if (reply.verdict != Verdict::kWait) {
      changed_.notify_all();
      return outcome_of(reply);
    }
    changed_.notify_all();  // poseidon_finish is a step of the job's thread, too
    const Nanoseconds left = deadline - clock_.now();
    if (left <= Nanoseconds::zero()) {
      return {Result::kTimeout, absl::StrCat(call, " waited in vain for ", what, "; ", situation(),
                                             "; the call may be repeated")};
    }
    changed_.wait_for(mutex_, left);
  }
}

Outcome ProgramLink::outcome_of(const Reply& reply) {
  switch (reply.verdict) {
    case Verdict::kOk:
    case Verdict::kWait:
      return {};
    case Verdict::kInvalid:
      return {Result::kInvalid, reply.message};
    case Verdict::kRewound:
      std::ranges::copy(job_state_, memory_->state().begin());
      return {Result::kRewound,
              absl::StrCat("the job goes on from iteration ", progress_.iteration(),
                           " after a loss, as worker ", progress_.place().rank, " of ",
                           progress_.place().workers)};
    case Verdict::kEnded:
      break;
  }
  return end_ ? Outcome{end_->result, end_->reason} : Outcome{Result::kEnded, "the job is over"};
}

std::string ProgramLink::situation() const {
  if (progress_.is_running()) return "the job trains: another worker or a server is slow";
  if (!last_epoch_.empty()) return absl::StrCat("the job recovers: ", last_epoch_);
  return "the job has not begun: are all of its workers and servers there?";
}

void ProgramLink::publish() {
  iteration_ = progress_.iteration();
  if (!progress_.has_joined()) return;
  rank_ = progress_.place().rank;
  workers_ = progress_.place().workers;
}

// ---- on the job's thread ----

void ProgramLink::prepare(const EpochPlace& place) {
  const MutexLock lock(mutex_);
  progress_.prepare(place);
}

void ProgramLink::begin(std::span<const float> state) {
  const MutexLock lock(mutex_);
  job_state_.assign(state.begin(), state.end());
  last_epoch_.clear();
  progress_.begin();
  changed_.notify_all();
}

ProgramProgress::Action ProgramLink::next(Milliseconds patience) {
  const MutexLock lock(mutex_);
  ProgramProgress::Action action = progress_.next();
  if (action.kind != ProgramProgress::Action::Kind::kNothing) return action;
  changed_.wait_for(mutex_, patience);
  return progress_.next();
}

std::vector<float> ProgramLink::state_of_step() {
  const MutexLock lock(mutex_);
  return step_state_;
}

void ProgramLink::landed(std::size_t layer) {
  const MutexLock lock(mutex_);
  progress_.landed(layer);
  changed_.notify_all();
}

void ProgramLink::norm_known(Iteration iteration, double norm) {
  const MutexLock lock(mutex_);
  norm_ = norm;
  progress_.norm_known(iteration);
  changed_.notify_all();
}

ProgramRates ProgramLink::rates_of(Iteration iteration) {
  const MutexLock lock(mutex_);
  return iteration == progress_.iteration() ? rates_ : last_rates_;
}

std::vector<std::uint64_t> ProgramLink::take_stalls() {
  const MutexLock lock(mutex_);
  return std::exchange(stall_ns_, std::vector<std::uint64_t>(names_.size()));
}

void ProgramLink::over(const absl::Status& why) {
  const MutexLock lock(mutex_);
  last_epoch_ = why.message().empty() ? "its epoch is over" : std::string(why.message());
  progress_.over();
}

absl::Status ProgramLink::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

void ProgramLink::set_cancel(std::function<void(const absl::Status& reason)> cancel) {
  const MutexLock lock(mutex_);
  cancel_ = std::move(cancel);
  if (cancel_ && !failure_.ok()) cancel_(failure_);
}

bool ProgramLink::has_joined() {
  const MutexLock lock(mutex_);
  return progress_.has_joined();
}

// ---- any thread ----

void ProgramLink::end(Result result, bool done, const std::string& reason) {
  const MutexLock lock(mutex_);
  if (end_) return;
  end_ = End{.result = result, .reason = reason};
  progress_.end(done);
  changed_.notify_all();
}

}  // namespace poseidon
