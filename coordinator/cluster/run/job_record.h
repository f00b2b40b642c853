#pragma once

// Decides when the job's record in the state directory changes, and its content: the next process
// continues the job from it. Called by: job_host.cc, which writes it. Calls: nothing; pure.
//
// Invariant: a record is written when training starts, when there is a first checkpoint, and at
// each step of a recovery. From then on another process can continue the job. Before its first
// epoch has trained, a job begins anew, and the record of its submission stays. Used with Cluster's
// mutex held (cluster_context.h).

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/job/job_run.h"
#include "coordinator/records/durable_job.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class JobRecord {
 public:
  void begin(const v1::SubmitRequest& request, std::optional<SnapshotId> source);
  /// `record`: of an earlier process, whose job trains in `epoch`.
  void resume(const v1::SubmitRequest& request, const DurableJob& record, Epoch epoch);

  const v1::SubmitRequest& submitted() const { return submitted_; }
  /// The checkpoint that the job began from, also after another coordinator's death.
  std::optional<SnapshotId> source() const { return source_; }
  /// The record's text if it is to be written anew.
  std::optional<std::string> update(const JobRun& job, const std::string& run_directory,
                                    std::int64_t now_unix_ms);

 private:
  /// The record that is, or is about to be, on the disk.
  struct Recorded {
    Epoch epoch;
    bool recovers = false, stopped = false, has_checkpoints = false;
    std::vector<NodeId> lost;
    bool operator==(const Recorded&) const = default;
  };

  v1::SubmitRequest submitted_;
  std::optional<SnapshotId> source_;
  std::optional<Recorded> recorded_;
  std::pair<Epoch, std::int64_t> trained_since_;  ///< when this epoch began to train, Unix ms
};

}  // namespace poseidon
