// What Cluster carries out for checkpoints and recovery: messages to nodes, files on the disk
// thread (cluster.cc has the rest of the nodes' half).

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/restore_source.h"
#include "common/plan/plan_proto.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/members/admission.h"
#include "spdlog/spdlog.h"

namespace poseidon {

void Cluster::send_assignment(const SendAssignment& assignment) {
  v1::CoordinatorMessage message;
  v1::Assignment& assign = *message.mutable_assign();
  *assign.mutable_plan() = plan_to_message(*job_->plan());
  assign.set_job_json(job_->job_json());
  assign.set_index(assignment.index);
  assign.set_job_id(job_->description().id);
  begun_ = std::max(begun_, job_->epoch());
  // Of epochs that are over nothing is in the making any more: what they left, goes.
  const NodeInfo* node = membership_.find(assignment.node);
  if (node != nullptr && node->role == NodeRole::kServer) send_keep(*node);
  if (const CheckpointManifest* source = job_->restore()) {
    *assign.mutable_restore() = restore_to_message(*source, job_->restore_addresses());
  }
  send(assignment.node, message);
}

void Cluster::send_save(const SendSave& save) {
  v1::CoordinatorMessage message;
  v1::SaveCheckpoint& out = *message.mutable_save_checkpoint();
  out.set_epoch(job_->epoch().value());
  out.set_iteration(static_cast<std::uint64_t>(save.iteration));
  out.set_held(save.held);
  for (const WorkerRank rank : save.lost) out.add_lost_ranks(rank.value());
  send(save.node, message);
}

void Cluster::take_epoch() {
  disk_.background->enqueue([this, id = job_->description().id] {
    const absl::StatusOr<std::uint64_t> epoch = state_->next_epoch();
    const std::lock_guard<std::mutex> lock(mutex_);
    forgive_job(clock_->now());
    if (is_job(id)) apply(job_->on_epoch(epoch, clock_->now()));
  });
}

void Cluster::forget_parts(const ForgetParts& forget) {
  v1::CoordinatorMessage message;
  message.mutable_forget_checkpoint()->set_snapshot(forget.snapshot.value());
  for (const NodeInfo& node : membership_.nodes()) {
    if (node.role != NodeRole::kServer) continue;
    if (std::find(forget.stores.begin(), forget.stores.end(), node.store_identity) !=
        forget.stores.end()) {
      send(node.id, message);
    }
  }
}

/// Its checkpoints of such epochs were made for another coordinator, or for this one after its
/// state directory was copied. Then the copy must not say what is kept: neither here nor, by its
/// name, in a later process, for which the epochs would look like its own.
void Cluster::look_for_unknown_epochs(const NodeInfo& server) {
  if (server.newest_epoch <= begun_ || !knows_all_checkpoints_) return;
  knows_all_checkpoints_ = false;
  const bool is_new = begun_ == Epoch(0) && catalog_.all().empty();
  note(is_new ? EventKind::kCheckpoint : EventKind::kAlarm,
       absl::StrCat(node_text(server), " has checkpoints of epoch ", server.newest_epoch.value(),
                    ", and this coordinator has begun none after ", begun_.value(), ": ",
                    is_new ? "they are another coordinator's"
                           : "its state directory is an older copy of the one that made them, or "
                             "they are another coordinator's",
                    "; no part of any is removed because it is not known here"));
  disk_.background->enqueue([this] {
    if (const absl::Status status = state_->forget_identity(); !status.ok()) {
      spdlog::error(
          "{}; remove it before the next start if servers have checkpoints that are not "
          "known here",
          one_line(std::string(status.message())));
    }
  });
}

/// It may have missed a ForgetCheckpoint, or have parts of what was never committed.
void Cluster::send_keep(const NodeInfo& server) {
  look_for_unknown_epochs(server);
  v1::CoordinatorMessage message;
  v1::KeepCheckpoints& keep = *message.mutable_keep_checkpoints();
  if (knows_all_checkpoints_) keep.set_identity(state_->identity());
  for (const auto& [snapshot, manifest] : catalog_.all()) {
    const auto& stores = manifest.stores;
    if (std::find(stores.begin(), stores.end(), server.store_identity) != stores.end()) {
      keep.add_snapshots(snapshot.value());
    }
  }
  for (const SnapshotId snapshot : settling_) keep.add_snapshots(snapshot.value());
  if (job_ && !job_->ended()) keep.set_epoch(job_->epoch().value());
  send(server.id, message);
}

void Cluster::write_manifest(const WriteManifest& write) {
  settling_.insert(write.manifest.snapshot);
  // A checkpoint that the lines on disk do not reach is not gone back to. Not waited for: this disk
  // may be another one's.
  directory_->sync();
  archive_.write(*disk_.background, write.manifest,
                 [this, manifest = write.manifest](const absl::Status& status) {
                   const std::lock_guard<std::mutex> lock(mutex_);
                   forgive_job(clock_->now());
                   settling_.erase(manifest.snapshot);
                   if (status.ok()) catalog_.add(manifest);
                   if (is_job(manifest.job_id)) {
                     apply(job_->on_manifest_written(manifest.snapshot, status, clock_->now()));
                   }
                 });
}

void Cluster::remove_manifest(const CheckpointManifest& manifest) {
  if (!catalog_.remove(manifest, clock_->now())) return;
  settling_.insert(manifest.snapshot);
  archive_.remove(*disk_.background, manifest, [this, manifest](const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const SnapshotId snapshot = manifest.snapshot;
    settling_.erase(snapshot);
    if (!status.ok()) catalog_.add(manifest);  // it is still there, and so are its parts
    // Of a job that is over, what it had given up already is no longer its to remove.
    const bool is_known = is_job(manifest.job_id) &&
                          (!job_->ended() || job_->checkpoints().committed().contains(snapshot));
    if (is_known) {
      apply(job_->on_manifest_removed(snapshot, status));
    } else if (status.ok()) {
      forget_parts({.snapshot = snapshot, .stores = manifest.stores});
    } else {
      note(EventKind::kAlarm, absl::StrCat("checkpoint ", snapshot_name(snapshot),
                                           " could not be removed: ", status.message()));
    }
    job_changed_.notify_all();
  });
}

void Cluster::remove_due_checkpoints() {
  for (const CheckpointManifest& manifest : catalog_.take_due(clock_->now())) {
    remove_manifest(manifest);
  }
}

}  // namespace poseidon
