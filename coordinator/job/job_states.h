#pragma once

// The states of a job, and the one table of what may follow what. Pure.
//
// Called by: the parts of job_run.h pass every change of state through JobStateMachine::transition.
// Calls: nothing; docs/recovery.md shows the table as a drawing, which a test compares.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/clock.h"

namespace poseidon {

enum class JobState : std::uint8_t {
  kWaiting,
  kCalibrating,
  kPreparingServers,
  kPreparingWorkers,
  kRunning,
  kHalting,    ///< a worker is lost: until everybody has said what it holds
  kSaving,     ///< until that is a committed checkpoint
  kReplacing,  ///< until there are enough nodes again, and a new epoch
  kDone,
  kStopped,  ///< somebody ended it
  kFailed
};
inline constexpr std::array kAllJobStates = {
    JobState::kWaiting,          JobState::kCalibrating, JobState::kPreparingServers,
    JobState::kPreparingWorkers, JobState::kRunning,     JobState::kHalting,
    JobState::kSaving,           JobState::kReplacing,   JobState::kDone,
    JobState::kStopped,          JobState::kFailed};
const char* job_state_name(JobState state);  ///< as in GetStatusResponse.state; several share one

/// What changes a job's state.
enum class JobEvent : std::uint8_t {
  kMeasure,       ///< the epoch's nodes are chosen, and are measured first
  kPlanned,       ///< the epoch's plan is made
  kServersReady,  ///< all of them
  kWorkersReady,  ///< all of them
  kResumed,       ///< a coordinator goes on with a job that was running when another one died
  kHalt,          ///< a worker is lost; the rest of the iteration may still be in memory
  kSave,          ///< all have halted, and what they hold together is worth a checkpoint
  kEpochOver,     ///< places are filled, then the next epoch begins
  kSucceed,       ///< all iterations are done and the model is stored
  kStop,          ///< somebody wanted the job to end, and nothing more is waited for
  kFail           ///< the job cannot go on
};
inline constexpr std::array kAllJobEvents = {
    JobEvent::kMeasure, JobEvent::kPlanned, JobEvent::kServersReady, JobEvent::kWorkersReady,
    JobEvent::kResumed, JobEvent::kHalt,    JobEvent::kSave,         JobEvent::kEpochOver,
    JobEvent::kSucceed, JobEvent::kStop,    JobEvent::kFail};

/// What an event does in a state. A pair without a row is refused: the program is wrong.
struct JobTransition {
  enum class Verdict : std::uint8_t { kGoes, kIgnored };
  JobState from;
  JobEvent event;
  Verdict verdict;
  JobState to;         ///< `from` where the event is ignored
  const char* guard;   ///< when it happens, for people
  const char* action;  ///< what the job does then, for people; of an ignored event: why
};

/// All rows, by state and then by event, each pair at most once.
std::span<const JobTransition> job_transitions();
/// Null: refused.
const JobTransition* job_transition(JobState state, JobEvent event);
/// The event changes the state.
bool job_goes(JobState state, JobEvent event);

/// "Halting": what the drawing, tests and messages call it; each state has its own.
const char* job_state_word(JobState state);
const char* job_event_text(JobEvent event);  ///< "a worker is lost"
/// The table as a mermaid state diagram, for docs/recovery.md.
std::string job_states_drawing();

/// Nodes have parts, and training has not begun yet.
bool is_preparing(JobState state);
/// Done, stopped or failed.
bool is_final(JobState state);

/// Where a job is, and since when. One thread only. `now` never goes backwards.
class JobStateMachine {
 public:
  explicit JobStateMachine(Nanoseconds now) : entered_(now), last_progress_(now) {}

  JobState state() const { return state_; }
  /// The only way to another state. A refused event is a programming error and stops the process.
  /// False: the table says that the event is ignored here.
  bool transition(JobEvent event, Nanoseconds now);
  Nanoseconds in_state(Nanoseconds now) const { return now - entered_; }
  /// Since the last accepted report, or the beginning of the state.
  Nanoseconds quiet(Nanoseconds now) const { return now - last_progress_; }
  void note_progress(Nanoseconds now) { last_progress_ = now; }
  /// So long nobody could be heard.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now);

 private:
  JobState state_ = JobState::kWaiting;
  Nanoseconds entered_;
  Nanoseconds last_progress_;
};

}  // namespace poseidon
