#include "coordinator/job/saving.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace poseidon {

void Saving::begin_epoch(JobActions& actions) {
  const std::uint64_t iteration_samples =
      job_.workers().size() * static_cast<std::uint64_t>(job_.run->elastic.batch_size);
  carry_out(job_.checkpoints.begin_epoch(job_.run->epoch, job_.run->first_iteration,
                                         manifest_frame(), iteration_samples),
            actions);
}

CheckpointManifest Saving::manifest_frame() const {
  const Plan& plan = *job_.run->plan;
  CheckpointManifest frame;
  frame.job_id = job_.description.id;
  frame.job_name = job_.description.name;
  frame.job_json = job_.description.job_json;
  frame.run_directory = job_.description.run_directory;
  frame.workers = static_cast<std::uint32_t>(job_.workers().size());
  frame.begun_with = job_.staffing.begun_with();
  frame.samples = job_.run->samples;
  for (const Participant& server : job_.roster().servers) {
    frame.stores.push_back(server.node.store_identity);
  }
  frame.pieces = checkpoint_pieces(plan, job_.description.checkpoints.chunk_bytes,
                                   job_.description.checkpoints.replicas);
  frame.plan = pin_of(plan);
  frame.data = job_.data.identity();
  return frame;
}

void Saving::carry_out(CheckpointActions wanted, JobActions& actions) {
  const Roster& roster = job_.roster();
  std::vector<WorkerRank> lost;
  for (const Participant& worker : roster.workers) {
    if (is_lost(worker)) lost.emplace_back(worker.index);
  }
  for (CheckpointAction& action : wanted) {
    if (const auto* ask = std::get_if<AskForCheckpoint>(&action)) {
      // Servers write the pieces that workers send, so servers are told first.
      for (const auto* group : {&roster.servers, &roster.workers}) {
        for (const Participant& p : *group) {
          if (is_lost(p)) continue;
          actions.emplace_back(SendSave{.node = p.node.id,
                                        .iteration = ask->iteration,
                                        .held = job_.state() == JobState::kSaving,
                                        .lost = lost});
        }
      }
    } else if (auto* forget = std::get_if<ForgetParts>(&action)) {
      actions.emplace_back(std::move(*forget));
    } else if (auto* write = std::get_if<WriteManifest>(&action)) {
      actions.emplace_back(std::move(*write));
    } else if (auto* remove = std::get_if<RemoveManifest>(&action)) {
      actions.emplace_back(std::move(*remove));
    } else if (auto* log = std::get_if<CheckpointLog>(&action)) {
      actions.emplace_back(std::move(*log));
    }
  }
}

bool Saving::on_report(const Participant& from, CheckpointCommit::Report report,
                       std::int64_t now_unix_s, Nanoseconds now, JobActions& actions) {
  if (job_.state() != JobState::kRunning && job_.state() != JobState::kHalting &&
      job_.state() != JobState::kSaving) {
    refuse(actions, Refusal::kWrongState,
           absl::StrFormat("CheckpointReport from %s; job %s is %s", participant_text(from),
                           job_.description.id, job_state_name(job_.state())));
    return false;
  }
  if (report.iteration <= job_.run->first_iteration || report.iteration > job_.iterations) {
    refuse(actions, Refusal::kWrongIteration,
           absl::StrFormat("CheckpointReport of iteration %d from %s", report.iteration,
                           participant_text(from)));
    return false;
  }
  report.server.reset();
  if (from.node.role == NodeRole::kServer) report.server = ServerIndex(from.index);
  report.who = participant_text(from);
  carry_out(job_.checkpoints.on_report(report, now_unix_s, now), actions);
  return true;
}

absl::Status Saving::ask(Nanoseconds now, JobActions& actions) {
  const JobDescription& job = job_.description;
  if (job_.state() != JobState::kRunning) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "job %s is %s: there is nothing to save just now", job.id, job_state_name(job_.state())));
  }
  if (job.programs.step) {
    return absl::FailedPreconditionError(
        absl::StrCat("the programs of job ", job.id,
                     " step its parameters by themselves "
                     "(optimizer.type \"sum\"): a checkpoint would not have these"));
  }
  if (job_.checkpoints.asked_for()) return absl::OkStatus();
  if (job_.run->iterations.completed() == job_.iterations) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id, " has done all its ",
                                                      job_.iterations, " iterations; its model is ",
                                                      job.run_directory, "/model.safetensors"));
  }
  absl::StatusOr<CheckpointActions> asked =
      job_.checkpoints.ask(job_.run->iterations.newest(), now);
  if (!asked.ok()) return asked.status();
  carry_out(*std::move(asked), actions);
  return absl::OkStatus();
}

std::optional<Iteration> Saving::asked_for() const {
  if (job_.checkpoints.asked_for()) return job_.checkpoints.asked_for();
  const std::optional<CheckpointOutcome>& last = job_.checkpoints.last();
  const bool is_there = last && last->committed &&
                        snapshot_epoch(last->snapshot) == job_.run->epoch &&
                        job_.state() == JobState::kRunning;
  return is_there ? std::optional(snapshot_iteration(last->snapshot)) : std::nullopt;
}

void Saving::save_held(Iteration version, Nanoseconds now, JobActions& actions) {
  job_.checkpoints.need(snapshot_id(job_.run->epoch, version));
  carry_out(job_.checkpoints.ask_held(version, now), actions);
}

/// A server holds back a few versions at most while training goes on.
bool Saving::is_open() const {
  constexpr int kMostUnderWay = 8;
  // Without a server no checkpoint gets whole any more.
  if (std::ranges::any_of(job_.roster().servers, is_lost)) return false;
  if (job_.checkpoints.any_in_the_making()) return true;
  const Iteration every = job_.description.checkpoints.every;
  if (every == 0) return false;
  Iteration due = job_.iterations / every * every;
  for (int i = 0; i < kMostUnderWay && due > job_.run->first_iteration; ++i, due -= every) {
    if (!job_.checkpoints.is_settled(due)) return true;
  }
  return false;
}

void Saving::watch_copies(Nanoseconds now, JobActions& actions) {
  const std::vector<Participant>& servers = job_.roster().servers;
  // The one that a restored run began from may be another job's, and is not its to copy.
  const CheckpointManifest* newest = job_.checkpoints.newest_usable();
  if (newest != nullptr && newest->job_id != job_.description.id) newest = nullptr;
  std::optional<std::int64_t> has;
  if (newest != nullptr) has = copies_here(*newest, job_.staffing.members());
  const CheckpointCopies::State before = copies_.state();
  if (copies_.look(servers.size(), has)) {
    switch (copies_.state()) {
      case CheckpointCopies::State::kServersMissing:
        job_.log(copies_.text(), actions, LogLine::Kind::kAlarm);
        break;
      case CheckpointCopies::State::kOldOnes:
        job_.log(copies_.text(), actions);
        break;
      case CheckpointCopies::State::kWhole:
        job_.log(before == CheckpointCopies::State::kServersMissing
                     ? "there are servers enough for all copies of its checkpoints again"
                     : "its newest checkpoint has all copies again",
                 actions);
        break;
    }
  }
  if (job_.description.programs.step || job_.checkpoints.any_in_the_making() ||
      !copies_.take_wish(now)) {
    return;
  }
  // What does not fit now (the run is about to end, say) is tried again after a pause.
  if (const absl::Status asked = ask(now, actions); !asked.ok()) {
    job_.log(absl::StrCat("no checkpoint with all copies yet: ", asked.message()), actions,
             LogLine::Kind::kRoutine);
  }
}

// ---- manifests ----

void Saving::on_written(SnapshotId snapshot, const absl::Status& status, JobActions& actions) {
  unwritten_.erase(snapshot);
  carry_out(job_.checkpoints.on_manifest_written(snapshot, status), actions);
}

std::string Saving::on_disk_full(SnapshotId snapshot, const std::string& why, Nanoseconds now,
                                 JobActions& actions) {
  std::string text = absl::StrCat("cannot write down yet that iteration ",
                                  snapshot_iteration(snapshot), " is saved: ", why);
  if (unwritten_[snapshot].refused(why, now)) {
    actions.emplace_back(
        LogLine{absl::StrCat("job ", job_.description.id, " ", text, "; tries again"),
                LogLine::Kind::kAlarm});
  }
  return text;
}

void Saving::write_again(Nanoseconds now, JobActions& actions) {
  for (auto& [snapshot, manifest] : unwritten_) {
    if (!manifest.is_due(now)) continue;
    manifest.ask(now);
    actions.emplace_back(WriteManifest{*job_.checkpoints.being_written(snapshot)});
  }
}

void Saving::give_up_unwritten(JobActions& actions) {
  for (const auto& [snapshot, manifest] : std::exchange(unwritten_, {})) {
    if (manifest.is_under_way()) continue;
    carry_out(job_.checkpoints.on_manifest_written(snapshot, absl::AbortedError(manifest.why())),
              actions);
  }
}

}  // namespace poseidon
