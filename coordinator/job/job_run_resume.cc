// Coming back: a node on a new stream, and the coordinator itself after a restart.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "coordinator/job/job_run.h"

namespace poseidon {

std::optional<LackingReports> JobRun::on_rejoin(const ReturningNode& back, JobActions& actions) {
  Participant* const participant = has_part(back.node) ? job_.roster().find(back.node) : nullptr;
  EpochRun& run = *job_.run;
  if (participant == nullptr || back.epoch != run.epoch || !run.plan ||
      back.index != participant->index) {
    return std::nullopt;
  }
  // What is being saved from memory was asked for once; a node that may have missed that is lost.
  if (state() == JobState::kSaving) return std::nullopt;
  // Nobody has heard of this epoch yet.
  if (state() == JobState::kCalibrating) return std::nullopt;
  LackingReports lacks;
  const CheckpointManifest* const newest = job_.checkpoints.newest();
  if (newest != nullptr && snapshot_epoch(newest->snapshot) == run.epoch) {
    lacks.checkpoint = newest->iteration() + 1;
  }
  const bool missed_halt =
      state() == JobState::kHalting && participant->state != ParticipantState::kHalted;
  // The question for a checkpoint may have been lost with the stream. A node that heard it hears it
  // again. That does no harm: one that is beyond it says so, and a later one is asked for.
  const bool is_server = participant->node.role == NodeRole::kServer;
  const auto awaited = job_.checkpoints.awaited_from(
      is_server ? std::optional(ServerIndex(participant->index)) : std::nullopt);
  if (state() == JobState::kRunning && awaited) {
    actions.emplace_back(SendSave{.node = back.node, .iteration = *awaited});
  }
  if (is_server) {
    if (missed_halt) actions.emplace_back(SendHalt{back.node});
    return lacks;
  }
  if (back.oldest < 0 || back.oldest > job_.iterations) return std::nullopt;
  participant->kept_until = back.next;
  const WorkerRank rank(participant->index);
  const Iteration next = run.iterations.next(rank);
  if (back.oldest > next) {
    const Iteration completed = run.iterations.completed();
    run.iterations.skip_to(back.oldest);
    job_.log(absl::StrFormat(
                 "%s was alone for so long that it no longer has its reports from iteration %d on; "
                 "metrics.jsonl has nothing of iterations %d to %d",
                 participant_text(*participant), next, completed, back.oldest - 1),
             actions);
  }
  // Start may have been lost with the stream; to hear it twice does no harm.
  if (state() == JobState::kRunning) actions.emplace_back(SendStart{back.node});
  if (missed_halt) actions.emplace_back(SendHalt{back.node});
  lacks.iteration = run.iterations.next(rank);
  lacks.test = run.tests.next(rank);
  return lacks;
}

std::unique_ptr<JobRun> JobRun::resume(const JobRunOptions& options, JobDescription description,
                                       RunningJob running, Nanoseconds now, JobActions& actions) {
  POSEIDON_CHECK(running.stopped || (running.plan.workers() == running.workers.size() &&
                                     running.plan.servers() == running.servers.size()),
                 "a checked record");
  auto resumed = std::make_unique<JobRun>(options, std::move(description), now);
  JobContext& job = resumed->job_;
  const auto workers = static_cast<std::uint32_t>(running.workers.size());
  job.roster() = {.workers = std::move(running.workers), .servers = std::move(running.servers)};
  for (auto* group : job.roster().groups()) {
    for (Participant& p : *group) {
      if (!is_lost(p)) p.state = ParticipantState::kRunning;
    }
  }
  job.staffing.set_begun_with(running.begun_with);
  job.staffing.on_trained();
  EpochRun& run = *job.run;
  run.first_iteration = running.first_iteration;
  run.samples = running.samples;
  run.plan = std::make_shared<const Plan>(std::move(running.plan));
  run.plan_basis = std::move(running.plan_basis);
  run.iterations = IterationCombiner(workers, running.completed);
  run.tests = TestCombiner(workers, running.test ? running.test->iteration + 1 : 0);
  run.loss = running.loss;
  run.model_stored = running.model_stored;
  if (job.description.with_workers) {
    absl::StatusOr<ElasticJob> elastic = job.description.with_workers(running.begun_with, workers);
    if (elastic.ok()) run.elastic = *std::move(elastic);  // it was, when the epoch began
  }
  if (running.data) job.data.set_trained(*running.data);
  resumed->training_.resume(running.completed, running.test);
  for (const SnapshotId snapshot : running.abandoned) job.checkpoints.abandon(snapshot);
  job.checkpoints.abandon_beyond(run.first_iteration, run.epoch);
  // As long as a process lives it keeps one that the lines on disk reach, once there was one.
  std::vector<Iteration> there;
  for (const auto& [snapshot, manifest] : job.checkpoints.committed()) {
    if (!job.checkpoints.is_abandoned(snapshot)) there.push_back(manifest.iteration());
  }
  job.source.set_lines_lost(!there.empty() && *std::ranges::min_element(there) > running.completed);
  if (!running.stopped) {  // else the next epoch begins with them, on other stores perhaps
    resumed->saving_.begin_epoch(actions);
    if (running.completed > run.first_iteration && running.loss) {
      job.checkpoints.on_loss(running.completed - 1, *running.loss);
    }
    const SnapshotId told = snapshot_id(run.epoch, running.completed);
    resumed->saving_.carry_out(job.checkpoints.on_told(told), actions);
  }
  job.pace.go_on(now - running.age, now, run.first_iteration);
  job.message.clear();
  job.states.transition(JobEvent::kResumed, now);
  if (!running.recovering_from.empty()) {
    resumed->recovery_.resume(running.recovering_from, running.stopped, now);
  }
  return resumed;
}

}  // namespace poseidon
