#pragma once

// `poseidon checkpoint export`: fetches a checkpoint's parameters from the servers and writes the
// model file that a run ending there would have written.
//
// Called by: checkpoint_command.h, with the coordinator's answer to LocateCheckpoint. Calls:
// common/checkpoint/store_client.h. The file can be init.weights of a job.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/restore_source.h"
#include "common/checkpoint/store_client.h"
#include "models/net/net.h"
#include "worker/engine/model_file.h"

namespace poseidon {

/// A network's parameters and running statistics, all in memory.
class CheckpointModel {
 public:
  explicit CheckpointModel(NetSpec net);

  /// The requests that fill it. It must outlive them. DATA_LOSS when the checkpoint does not have
  /// all of it.
  absl::StatusOr<std::vector<StoreRequest>> requests(const RestoreSource& source);
  /// Refers to this, once all requests are answered.
  absl::StatusOr<EncodedModel> encode() const;

 private:
  const NetSpec net_;
  std::vector<std::vector<float>> parameters_;  ///< by LayerIndex
  std::vector<float> statistics_;
};

}  // namespace poseidon
