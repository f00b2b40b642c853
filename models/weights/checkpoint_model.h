#pragma once

// The model of a checkpoint: fetches its parameters from the servers and makes the file that a run
// ending there would have written. It can be init.weights of a job.
//
// Called by: cli/commands/checkpoint_command.h (`poseidon checkpoint export`) and
// coordinator/records/stopped_run.h (a job that is stopped). Calls:
// common/checkpoint/store_client.h, encoded_model.h.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/checkpoint/restore_source.h"
#include "common/checkpoint/store_client.h"
#include "common/security/security.h"
#include "models/net/net.h"
#include "models/weights/encoded_model.h"

namespace poseidon {

struct CheckpointFetch {
  std::shared_ptr<Security> security;
  /// The checkpoint may be removed meanwhile unless this is called every `interval`. Not empty.
  std::function<void()> keep_held = [] {};
  Milliseconds interval{1000};
  /// The fetch fails when a store does not answer for this long.
  Nanoseconds give_up_after = std::chrono::seconds(30);
};
/// Blocks until all requests are answered or one has failed, on a transport of its own.
absl::Status fetch_pieces(std::vector<StoreRequest> requests, const CheckpointFetch& options);

/// A network's parameters and running statistics, all in memory.
class CheckpointModel {
 public:
  explicit CheckpointModel(ModelLayout layout);

  /// The requests that fill it. It must outlive them. DATA_LOSS when the checkpoint does not have
  /// all of it.
  absl::StatusOr<std::vector<StoreRequest>> requests(const RestoreSource& source);
  /// Refers to this, once all requests are answered.
  absl::StatusOr<EncodedModel> encode() const;

 private:
  const ModelLayout layout_;
  std::vector<std::vector<float>> parameters_;  ///< by LayerIndex
  std::vector<float> statistics_;
};

}  // namespace poseidon
