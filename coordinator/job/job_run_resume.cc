// JobRun's part about coming back: a node on a new stream, and the coordinator itself after a
// restart (job_run.cc has the job's life).

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "coordinator/job/job_run.h"

namespace poseidon {

bool JobRun::has_part(NodeId id) const {
  if (ended()) return false;
  for (const auto* group : {&workers_, &servers_}) {
    for (const Participant& p : *group) {
      if (p.node.id == id) {
        return p.state != ParticipantState::kLost && p.state != ParticipantState::kWaiting;
      }
    }
  }
  return false;
}

std::optional<LackingReports> JobRun::on_rejoin(const ReturningNode& back, JobActions& actions) {
  Participant* const participant = has_part(back.node) ? find(back.node) : nullptr;
  if (participant == nullptr || back.epoch != epoch_ || !run_ || back.index != participant->index) {
    return std::nullopt;
  }
  // What is saved of memory just now was asked for once; whoever may have missed that is lost.
  if (state() == JobState::kSaving) return std::nullopt;
  // Nobody has heard of this epoch yet.
  if (state() == JobState::kCalibrating) return std::nullopt;
  LackingReports lacks;
  const CheckpointManifest* const newest = checkpoints_.newest();
  if (newest != nullptr && snapshot_epoch(newest->snapshot) == epoch_) {
    lacks.checkpoint = newest->iteration() + 1;
  }
  const bool missed_halt =
      state() == JobState::kHalting && participant->state != ParticipantState::kHalted;
  // The question for a checkpoint may have been lost with the stream. Who heard it hears it again,
  // which does no harm but to one that is beyond it and says so: then a later one is asked for.
  const bool is_server = participant->node.role == NodeRole::kServer;
  const auto awaited = checkpoints_.awaited_from(
      is_server ? std::optional(ServerIndex(participant->index)) : std::nullopt);
  if (state() == JobState::kRunning && awaited) {
    actions.emplace_back(SendSave{.node = back.node, .iteration = *awaited});
  }
  if (is_server) {
    if (missed_halt) actions.emplace_back(SendHalt{back.node});
    return lacks;
  }
  if (back.oldest < 0 || back.oldest > description_.iterations) return std::nullopt;
  participant->kept_until = back.next;
  const WorkerRank rank(participant->index);
  const Iteration next = run_->iterations.next(rank);
  if (back.oldest > next) {
    const Iteration completed = run_->iterations.completed();
    run_->iterations.skip_to(back.oldest);
    actions.emplace_back(LogLine{absl::StrFormat(
        "job %s: %s was alone for so long that it no longer has its reports from iteration %d on; "
        "metrics.jsonl has nothing of iterations %d to %d",
        description_.id, participant_text(*participant), next, completed, back.oldest - 1)});
  }
  // Start may have been lost with the stream; to hear it twice does no harm.
  if (state() == JobState::kRunning) actions.emplace_back(SendStart{back.node});
  if (missed_halt) actions.emplace_back(SendHalt{back.node});
  lacks.iteration = run_->iterations.next(rank);
  lacks.test = run_->tests.next(rank);
  return lacks;
}

JobActions JobRun::on_outdated(const std::string& why, Nanoseconds now) {
  JobActions actions;
  if (ended()) return actions;
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) p.state = ParticipantState::kLost;
  }
  recover(EpochEnd::kServerLost, why, /*in_memory=*/false, now, actions);
  return actions;
}

std::unique_ptr<JobRun> JobRun::resume(JobRunOptions options, JobDescription description,
                                       RunningJob running, Nanoseconds now, JobActions& actions) {
  POSEIDON_CHECK(running.stopped || (running.plan.workers() == running.workers.size() &&
                                     running.plan.servers() == running.servers.size()),
                 "a checked record");
  auto run = std::make_unique<JobRun>(options, std::move(description), now);
  const auto workers = static_cast<std::uint32_t>(running.workers.size());
  run->plan_basis_ = std::move(running.plan_basis);
  run->workers_ = running.workers;
  run->servers_ = running.servers;
  for (auto* group : {&run->workers_, &run->servers_}) {
    for (Participant& p : *group) {
      if (!is_lost(p)) p.state = ParticipantState::kRunning;
    }
  }
  run->run_.emplace(std::make_shared<const Plan>(std::move(running.plan)), workers,
                    running.completed, running.test ? running.test->iteration + 1 : 0);
  run->first_iteration_ = running.first_iteration;
  run->begun_with_ = running.begun_with;
  run->samples_ = running.samples;
  if (running.data) run->data_.set_trained(*running.data);
  if (run->description_.with_workers) {
    absl::StatusOr<ElasticJob> elastic =
        run->description_.with_workers(running.begun_with, workers);
    if (elastic.ok()) run->elastic_ = *std::move(elastic);  // it was, when the epoch began
  }
  run->furthest_ = running.completed;
  for (const SnapshotId snapshot : running.abandoned) run->checkpoints_.abandon(snapshot);
  run->checkpoints_.abandon_beyond(run->first_iteration_, run->epoch_);
  // As long as a process lives it keeps one that the lines on disk reach, once there was one.
  std::vector<Iteration> there;
  for (const auto& [snapshot, manifest] : run->checkpoints_.committed()) {
    if (!run->checkpoints_.is_abandoned(snapshot)) there.push_back(manifest.iteration());
  }
  run->lines_are_lost_ = !there.empty() && *std::ranges::min_element(there) > running.completed;
  if (!running.stopped) {  // then the next epoch begins with them, on other stores perhaps
    run->carry_out(
        run->checkpoints_.begin_epoch(run->epoch_, run->first_iteration_, run->manifest_frame(),
                                      workers * static_cast<std::uint64_t>(run->batch_size())),
        actions);
    if (running.completed > run->first_iteration_ && running.loss) {
      run->checkpoints_.on_loss(running.completed - 1, *running.loss);
    }
    run->carry_out(run->checkpoints_.on_told(snapshot_id(run->epoch_, running.completed)), actions);
  }
  run->loss_ = running.loss;
  run->test_ = running.test;
  run->model_stored_ = running.model_stored;
  run->pace_.go_on(now - running.age, now, run->first_iteration_);
  run->message_.clear();
  run->states_.transition(JobEvent::kResumed, now);
  run->trained_workers_ = run->workers_.size();
  if (!running.recovering_from.empty()) run->resume_recovery(running, now);
  return run;
}

/// The earlier coordinator died while the job recovered. As long as nobody was told to stop, those
/// that halted still hold what they held, and say so again when they are back. Afterwards nodes
/// come as new ones, and the next epoch begins from the newest checkpoint.
void JobRun::resume_recovery(const RunningJob& running, Nanoseconds now) {
  recovering_from_ = running.recovering_from;
  recovery_.emplace(now);
  ++recoveries_;
  message_ =
      absl::StrCat("recovers: ", recovering_from_, "; the coordinator was started again meanwhile");
  if (!running.stopped) {
    states_.transition(JobEvent::kHalt, now);
    return;
  }
  for (auto* group : {&workers_, &servers_}) {
    for (Participant& p : *group) p.state = ParticipantState::kLost;
  }
  states_.transition(JobEvent::kEpochOver, now);
}

}  // namespace poseidon
