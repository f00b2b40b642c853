#pragma once

// Builds the messages by which a node reports its part in an epoch of a job. Pure.
//
// Called by: a worker's job and servers; coordinator/job/recovery.cc, for the words that end an
// epoch. Calls: nothing; common/node/report_outbox.h keeps the
// messages and common/node/control_client.h sends them.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/job/data_identity.h"
#include "common/wire/snapshot.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// How StopJob.reason begins where another epoch of the job follows. Any other reason is the end of
/// the node's part in the job.
inline constexpr char kJobRecovers[] = "the job recovers: ";

/// Classifies a failure, so that the coordinator can choose a remedy. `restoring`: it happened
/// while a checkpoint was read.
v1::Failure failure_of(const absl::Status& status, bool restoring);

/// The node is prepared and may start. `data`: what a worker found at the job's data paths.
v1::NodeMessage ready_message(Epoch epoch, const std::optional<DataIdentity>& data = std::nullopt);
/// `loss`: mean over this worker's samples of the iteration.
v1::NodeMessage iteration_message(Epoch epoch, Iteration iteration, double loss);
/// Over this worker's share of the test samples, with parameters that have seen `steps` steps.
v1::NodeMessage test_message(Epoch epoch, Iteration steps, double loss_sum, std::int64_t correct,
                             std::int64_t samples);
v1::NodeMessage finished_message(Epoch epoch);
/// The status' text may hold any bytes.
v1::NodeMessage failed_message(Epoch epoch, const absl::Status& status, bool restoring);
/// Training has halted. Versions `oldest` to `newest` can still be saved; none if oldest is
/// greater.
v1::NodeMessage halted_message(Epoch epoch, Iteration oldest, Iteration newest);
/// This node's part of a checkpoint is missing, and why.
v1::NodeMessage checkpoint_missing_message(Epoch epoch, Iteration version,
                                           const std::string& reason, MissingPart why);

}  // namespace poseidon
