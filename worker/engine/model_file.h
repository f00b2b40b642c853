#pragma once

// A network's parameters and running statistics as a safetensors file: tensors named
// <layer>.<tensor>, PyTorch's layouts.
//
// Called by: worker/native_framework.h, to upload the final model (ControlClient.upload_model) and
// to load a job's init.weights. Calls: models/weights/encoded_model.h, common/files/safetensors.h.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/weights/encoded_model.h"
#include "worker/engine/executor.h"

namespace poseidon {

/// The file of an engine's network. It refers to the engine's parameters, which must not change
/// meanwhile.
absl::StatusOr<EncodedModel> encode_model(Executor& executor);

/// Layer names in the file -> layer names of the network, for files that call layers otherwise
/// (init.rename).
using LayerRenames = std::map<std::string, std::string>;

/// Which tensors of a file and a network match. Tensors by their names in the network.
struct WeightsReport {
  std::vector<std::string> loaded;
  std::vector<std::string> not_in_file;     ///< of the network; they keep their values
  std::vector<std::string> not_in_network;  ///< of the file; ignored
};

/// One line for people: how many tensors were loaded, and the names (some of them, when there are
/// many) of those that were not. Pure.
std::string weights_report_to_text(const WeightsReport& report);

/// Whether load_weights would succeed, and its report; reads only the file's header.
absl::StatusOr<WeightsReport> check_weights(const std::filesystem::path& path,
                                            const LayerRenames& renames, const NetSpec& net);

/// Which of the network's tensors to load: worker 0 distributes the parameters, but every worker
/// has its own running statistics.
enum class WeightsPart { kAll, kStatistics };

/// Copies every tensor of the file that the network has; every floating dtype becomes float32.
/// INVALID_ARGUMENT when none fits, when a shape differs (naming the tensor and both shapes), when
/// its values are no floating numbers, or when a rename does not fit; then nothing is changed. Also
/// when a value is not finite or a running variance negative; then what came before it is loaded.
/// The report is about all, whatever `part` is.
absl::StatusOr<WeightsReport> load_weights(const std::filesystem::path& path,
                                           const LayerRenames& renames, WeightsPart part,
                                           Executor& executor);

}  // namespace poseidon
