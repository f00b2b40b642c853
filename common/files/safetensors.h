#pragma once

// Named tensors in the public safetensors format: the final model, and weights to start from.
// Writes float32, which the Python package `safetensors` can open, and reads every floating dtype.
//
// Called by: the writer of the final model and the reader of initial weights. Calls:
// common/files/file_io.h, common/files/json_fields.h.
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace poseidon {

/// A tensor to write; refers to the caller's memory.
struct TensorView {
  std::string name;                 ///< e.g. "conv1.weight"
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::span<const float> values;    ///< C-contiguous, as many as the shape says
};

using SafetensorsMetadata = std::map<std::string, std::string>;

/// A tensor of a file, as its header describes it.
struct StoredTensor {
  std::string name;
  std::string dtype;  ///< "F32", "F16", "I64", ...; may be unknown to this version
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 0;
  std::uint64_t offset_bytes = 0;  ///< from the start of the file
  std::uint64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< in the order of their bytes in the file
  SafetensorsMetadata metadata;

  const StoredTensor* find(std::string_view name) const;  ///< nullptr when there is none
};

/// The bytes of a file in pieces, the tensors in the given order: first length and header, then one
/// piece per tensor, which refers to the caller's memory. Equal input gives equal bytes. The data
/// starts at a multiple of 8. INVALID_ARGUMENT for a name that is empty, repeated, not UTF-8 or
/// reserved, and for a shape that does not fit its values. Pure.
struct EncodedSafetensors {
  std::string header;
  std::vector<std::string_view> values;

  std::uint64_t size_bytes() const;
};
absl::StatusOr<EncodedSafetensors> encode_safetensors(std::span<const TensorView> tensors,
                                                      const SafetensorsMetadata& metadata = {});

/// Reads the header from the first bytes (at least safetensors_header_bytes of them) of an
/// untrusted file of `file_bytes`. Checks every claim: offsets lie in the file without holes or
/// overlap, and shapes match bytes where the dtype's size is known. Errors start with `source`.
/// Pure.
absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view bytes,
                                                           std::uint64_t file_bytes,
                                                           std::string_view source);
/// Bytes from the start of the file to the end of the header, read from the first kLengthBytes.
/// INVALID_ARGUMENT when that exceeds the file or the limit of a header.
absl::StatusOr<std::uint64_t> safetensors_header_bytes(std::string_view first_bytes,
                                                       std::uint64_t file_bytes,
                                                       std::string_view source);
inline constexpr std::size_t kSafetensorsLengthBytes = 8;

/// Whether values of this dtype can be made float32: F64 (rounded), F32, F16, BF16.
bool is_floating_dtype(std::string_view dtype);
/// Converts bytes of a floating dtype to float32, filling `values`. Pure.
void decode_values(std::string_view dtype, std::string_view bytes, std::span<float> values);

/// A file whose header has been read; values are read on demand. One thread.
class SafetensorsReader {
 public:
  /// Errors start with the path.
  static absl::StatusOr<SafetensorsReader> open(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  /// All values of a tensor of the header, of a floating dtype, as float32.
  absl::Status read(const StoredTensor& tensor, std::span<float> values) const;

 private:
  SafetensorsReader(std::filesystem::path path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  Descriptor file_;
  SafetensorsHeader header_;
};

}  // namespace poseidon
