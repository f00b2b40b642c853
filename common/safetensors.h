#pragma once

// Named float32 tensors in the public safetensors format: the final model, and weights to start
// from. Before: the servers' last parameter version. After: a file that the Python package
// `safetensors` opens, or parameters for the engine.
//
// Format: u64 little endian = bytes of the header; the header, a JSON object
// {"__metadata__": {text: text}, "<name>": {"dtype": "F32", "shape": [..], "data_offsets": [begin,
// end]}} padded with spaces; the data, C-contiguous little endian, without holes. Offsets count
// from the end of the header.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace poseidon {

/// A tensor to write; refers to the caller's memory.
struct TensorView {
  std::string name;                 ///< e.g. "conv1.weight"
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::span<const float> values;    ///< C-contiguous, as many as the shape says
};

/// A tensor that was read; owns its memory.
struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsFile {
  std::vector<Tensor> tensors;  ///< in the order of their bytes in the file
  SafetensorsMetadata metadata;

  const Tensor* find(std::string_view name) const;  ///< nullptr when there is none
};

/// The bytes of the file, the tensors in the given order: equal input gives equal bytes. The data
/// start at a multiple of 8. INVALID_ARGUMENT for a name that is empty, repeated, not UTF-8 or
/// reserved, and for a shape that does not fit its values. Pure.
absl::StatusOr<std::string> encode_safetensors(std::span<const TensorView> tensors,
                                               const SafetensorsMetadata& metadata = {});

/// The same bytes to a file, atomically (write_file_atomically), without a second copy of the data.
absl::Status write_safetensors(const std::filesystem::path& path,
                               std::span<const TensorView> tensors,
                               const SafetensorsMetadata& metadata = {});

/// Reads bytes that nobody vouches for. Every claim of the header is checked before anything is
/// allocated for it: offsets in the file, without hole or overlap, shape against bytes, dtype F32.
/// Errors start with `source`. Pure.
absl::StatusOr<SafetensorsFile> parse_safetensors(std::string_view bytes, std::string_view source);

/// Reads and parses a file; errors start with the path.
absl::StatusOr<SafetensorsFile> load_safetensors(const std::filesystem::path& path);

}  // namespace poseidon
