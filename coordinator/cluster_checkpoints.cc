// What Cluster carries out for checkpoints and recovery: messages to nodes, files on the disk
// thread (cluster.cc has the rest of the nodes' half).

#include <algorithm>
#include <utility>

#include "common/plan_proto.h"
#include "common/restore_source.h"
#include "coordinator/cluster.h"

namespace poseidon {

void Cluster::send_assignment(const SendAssignment& assignment) {
  v1::CoordinatorMessage message;
  v1::Assignment& assign = *message.mutable_assign();
  *assign.mutable_plan() = plan_to_message(*job_->plan());
  assign.set_job_json(job_json_);
  assign.set_index(assignment.index);
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
  disk_->enqueue([this, id = job_->description().id] {
    const absl::StatusOr<std::uint64_t> epoch = state_->next_epoch();
    const std::lock_guard<std::mutex> lock(mutex_);
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

void Cluster::write_manifest(const WriteManifest& write) {
  archive_.write(*disk_, write.manifest,
                 [this, id = write.manifest.job_id,
                  snapshot = write.manifest.snapshot](const absl::Status& status) {
                   const std::lock_guard<std::mutex> lock(mutex_);
                   if (is_job(id)) apply(job_->on_manifest_written(snapshot, status, clock_->now()));
                 });
}

void Cluster::remove_manifest(const RemoveManifest& remove) {
  archive_.remove(*disk_, remove.manifest,
                  [this, id = remove.manifest.job_id,
                   snapshot = remove.manifest.snapshot](const absl::Status& status) {
                    const std::lock_guard<std::mutex> lock(mutex_);
                    if (is_job(id)) apply(job_->on_manifest_removed(snapshot, status));
                  });
}

}  // namespace poseidon
