#pragma once

// What the next epoch goes on from: a committed checkpoint, or the beginning. Pure.
//
// Called by: waiting.h finds the stores of the checkpoint that the operator chose, recovery.h
// chooses one after a loss, preparation.h sends the choice to the nodes.
// Calls: checkpoint_commit.h.

#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/checkpoint/checkpoint.h"
#include "coordinator/job/checkpoints/checkpoint_commit.h"
#include "coordinator/members/membership.h"

namespace poseidon {

/// One job's. One thread only.
class EpochSource {
 public:
  /// `checkpoint_every`: iterations from one periodic checkpoint to the next; 0: there are none.
  EpochSource(CheckpointCommit& checkpoints, Iteration checkpoint_every)
      : checkpoints_(checkpoints), checkpoint_every_(checkpoint_every) {}

  /// The run begins at this committed checkpoint, by the operator's choice: other checkpoints, of
  /// this course or another one, never take its place.
  const CheckpointManifest& begin_at(SnapshotId snapshot);
  /// Null: the epoch begins at iteration 0.
  const CheckpointManifest* manifest() const { return manifest_ ? &*manifest_ : nullptr; }
  /// Of the checkpoint's stores, in their order; "" where a store is not here.
  const std::vector<std::string>& addresses() const { return addresses_; }
  Iteration first_iteration() const { return manifest_ ? manifest_->iteration() : 0; }
  std::uint64_t samples() const { return manifest_ ? manifest_->samples : 0; }
  /// "checkpoint 3-100", "the beginning".
  std::string text() const;

  /// Looks for the stores of manifest() anew. False: a piece of it is in no store that is here.
  bool locate(const std::vector<NodeInfo>& members);
  /// The checkpoint is still committed and each piece of it is in a store that is here; true for
  /// the beginning.
  bool is_here(const std::vector<NodeInfo>& members) const;
  /// "the server with data directory 01ab... (STORE_IDENTITY), which has a part of checkpoint
  /// 3-100"; "" when all stores of manifest() are here.
  std::string missing_text(const std::vector<NodeInfo>& members) const;

  /// What an epoch may begin from, newest last: readable, of this course, and not beyond `told`,
  /// the iterations that the metrics tell of: a worker that was out of reach may have taken its
  /// reports with it. Where there is none such because an earlier process's disk has lost lines,
  /// those beyond it, if they are worth more than the first checkpoint: training is worth more than
  /// lines of metrics. `told` is nothing before the first plan: then all count.
  std::vector<const CheckpointManifest*> usable(std::optional<Iteration> told) const;
  /// The newest of usable() that can be read, or the beginning where there never was one.
  /// `in_time`: only the newest will do, its servers may still come. False: there is none;
  /// `missing` names the stores that would help, unless it named something else already.
  bool choose(const std::vector<NodeInfo>& members, std::optional<Iteration> told, bool in_time,
              std::string& missing);
  /// metrics.jsonl reaches no checkpoint of an earlier process.
  void set_lines_lost(bool lost) { lines_are_lost_ = lost; }

 private:
  CheckpointCommit& checkpoints_;
  const Iteration checkpoint_every_;
  std::optional<CheckpointManifest> manifest_;
  std::vector<std::string> addresses_;
  bool lines_are_lost_ = false;
};

}  // namespace poseidon
