#pragma once

// A network's parameters and running statistics as a safetensors file: tensors named
// <layer>.<tensor>, PyTorch's layouts.
//
// Called by: worker/worker_job.h, to upload the final model (ControlClient.upload_model) and to
// load a job's init.weights. Calls: common/files/safetensors.h, models/net/model_tensors.h.

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files/safetensors.h"
#include "worker/engine/executor.h"

namespace poseidon {

/// The file's bytes in pieces. Most refer to the caller's parameters, which must not change
/// meanwhile; nothing of their size is copied.
class EncodedModel {
 public:
  /// The parameters of each parameter layer, by LayerIndex, and all running statistics, as
  /// statistic_places says. Equal values give equal bytes. INVALID_ARGUMENT for sizes that are not
  /// the network's.
  static absl::StatusOr<EncodedModel> encode(const NetSpec& net,
                                             const std::vector<std::span<const float>>& parameters,
                                             std::vector<float> statistics);
  /// Those of an engine.
  static absl::StatusOr<EncodedModel> encode(Executor& executor);

  std::vector<std::string_view> pieces() const;

 private:
  std::vector<float> statistics_;  // a copy: the device has them
  EncodedSafetensors file_;
};

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
