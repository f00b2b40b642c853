#include "coordinator/cluster/run/job_record.h"

#include <algorithm>
#include <set>
#include <utility>

namespace poseidon {
namespace {

std::vector<NodeInfo> nodes_of(const std::vector<Participant>& participants) {
  std::vector<NodeInfo> nodes;
  for (const Participant& p : participants) nodes.push_back(p.node);
  return nodes;
}

}  // namespace

void JobRecord::begin(const v1::SubmitRequest& request, std::optional<SnapshotId> source) {
  submitted_ = request;
  source_ = source;
  recorded_.reset();
}

void JobRecord::resume(const v1::SubmitRequest& request, const DurableJob& record, Epoch epoch) {
  begin(request, record.source);
  trained_since_ = {epoch, record.running->started_unix_ms};
}

std::optional<std::string> JobRecord::update(const JobRun& job, const std::string& run_directory,
                                             std::int64_t now_unix_ms) {
  const JobView view = job.view();
  const JobState state = job.state();
  const bool stopped = state == JobState::kReplacing;
  const bool recovers = stopped || state == JobState::kHalting || state == JobState::kSaving;
  // Before the first epoch trained, a job begins anew.
  if (!view.pace.has_begun() || !(recovers || state == JobState::kRunning)) return std::nullopt;
  std::vector<NodeId> lost;
  for (const auto* group : view.roster.groups()) {
    for (const Participant& p : *group) {
      if (recovers && p.state == ParticipantState::kLost) lost.push_back(p.node.id);
    }
  }
  const CheckpointCommit& checkpoints = view.checkpoints;
  const bool has_checkpoints = std::ranges::any_of(
      checkpoints.committed(),
      [&checkpoints](const auto& one) { return checkpoints.is_usable(one.first); });
  Recorded now{.epoch = job.epoch(),
               .recovers = recovers,
               .stopped = stopped,
               .has_checkpoints = has_checkpoints,
               .lost = lost};
  if (recorded_ == now) return std::nullopt;
  if (trained_since_.first != job.epoch()) {
    trained_since_ = {job.epoch(), now_unix_ms};
  }
  recorded_ = std::move(now);
  const std::set<SnapshotId>& abandoned = checkpoints.abandoned();
  const DurableJob record{
      .id = job.description().id,
      .job_json = submitted_.job_json(),
      .run_directory = run_directory,
      .workers = submitted_.workers(),
      .servers = submitted_.servers(),
      .source = source_,
      .running = DurableJob::Running{.plan = *view.run.plan,
                                     .plan_basis = view.run.plan_basis,
                                     .workers = nodes_of(view.roster.workers),
                                     .servers = nodes_of(view.roster.servers),
                                     .first_iteration = view.run.first_iteration,
                                     .begun_with = view.staffing.begun_with(),
                                     .samples = static_cast<std::int64_t>(view.run.samples),
                                     .started_unix_ms = trained_since_.second,
                                     .recovering_from = recovers ? view.recovery.reason() : "",
                                     .lost = std::move(lost),
                                     .stopped = stopped,
                                     .has_checkpoints = has_checkpoints,
                                     .abandoned = {abandoned.begin(), abandoned.end()},
                                     .data = view.data.identity()}};
  return durable_job_to_json(record);
}

}  // namespace poseidon
