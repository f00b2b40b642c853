#pragma once

// A network's parameters as a safetensors file: tensors named <layer>.<tensor>, PyTorch's layouts.

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/executor.h"

namespace poseidon {

/// The file's bytes: equal parameters give equal bytes.
absl::StatusOr<std::string> encode_model(Executor& executor);

/// What load_weights found.
struct WeightsReport {
  std::vector<std::string> loaded;
  std::vector<std::string> not_in_file;     ///< of the network; they keep their values
  std::vector<std::string> not_in_network;  ///< of the file; ignored
};

/// Whether load_weights would succeed, and what it would find; without an engine.
absl::StatusOr<WeightsReport> check_weights(const std::filesystem::path& path, const NetSpec& net);

/// Copies every tensor of the file that the network has. INVALID_ARGUMENT when none fits, or when a
/// shape differs (naming the tensor and both shapes); then nothing is changed.
absl::StatusOr<WeightsReport> load_weights(const std::filesystem::path& path, Executor& executor);

}  // namespace poseidon
