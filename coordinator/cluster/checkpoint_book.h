#pragma once

// The committed checkpoints: their manifests in memory and on disk, and what servers are told to
// keep or to forget.
// Called by: cluster*.cc. Calls: CheckpointCatalog, CheckpointArchive (on the disk thread),
// NodeStreams.
//
// Invariants
//  1. A server removes nothing that a manifest names, or that a manifest being written or removed
//     names.
//  2. While not every manifest is known here, no server is told to remove what is unknown.
//  3. A manifest is removed before the parts that it names.
// Used with Cluster's mutex held (cluster_context.h); the disk thread takes it for each result.
// The constructor and load_of_job read the disk and need no mutex.

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/cluster_context.h"
#include "coordinator/cluster/watch.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/members/node_streams.h"
#include "coordinator/records/checkpoint_archive.h"
#include "coordinator/records/checkpoint_catalog.h"

namespace poseidon {

class CheckpointBook {
 public:
  using Done = std::function<void(const CheckpointManifest&, const absl::Status&)>;

  /// Reads the manifests. All references outlive it. `on_written` and `on_removed` are called with
  /// the mutex held.
  CheckpointBook(ClusterContext& context, const Membership& membership, NodeStreams& streams,
                 Watch& watch, Done on_written, Done on_removed);

  const CheckpointCatalog& catalog() const { return catalog_; }
  /// A remark for a user of this checkpoint ("": the newest); "" for none.
  std::string doubt_about(const std::string& id) const;
  /// Manifests of this job as they are on the disk now.
  std::vector<CheckpointManifest> load_of_job(const std::string& job_id) const;
  /// An operator reads it for a while.
  void hold(SnapshotId snapshot) { catalog_.hold(snapshot, context_.now()); }
  /// A job continues from it.
  void keep(SnapshotId snapshot) { catalog_.keep(snapshot); }

  void write(const CheckpointManifest& manifest);
  /// Where an operator holds it, later.
  void remove(const CheckpointManifest& manifest);
  /// Removes those whose holds have run out.
  void remove_due();
  /// No manifest is being written or removed.
  bool is_settled() const { return settling_.empty(); }

  /// An epoch begins: checkpoints of it come from this coordinator.
  void on_epoch_begun(Epoch epoch) { newest_epoch_ = std::max(newest_epoch_, epoch); }
  /// Tells a server that has joined or begins an epoch which checkpoints to keep: it may have
  /// missed a ForgetCheckpoint, or have parts of checkpoints that were never committed. `epoch`: of
  /// the active job, whose unfinished checkpoints are kept.
  void send_keep(const NodeInfo& server, std::optional<Epoch> epoch);
  void send_forget(const ForgetParts& forget);

 private:
  void look_for_unknown_epochs(const NodeInfo& server);

  ClusterContext& context_;
  const Membership& membership_;
  NodeStreams& streams_;
  Watch& watch_;
  const Done on_written_, on_removed_;
  CheckpointCatalog catalog_;
  const CheckpointArchive archive_;
  /// Manifests that are being written or removed: servers keep what they name.
  std::set<SnapshotId> settling_;
  /// Every manifest on disk could be read, and no server has checkpoints of epochs that this state
  /// directory has not begun.
  bool knows_all_ = true;
  Epoch newest_epoch_;  ///< begun by this process or, as far as it knows, by an earlier one
};

}  // namespace poseidon
