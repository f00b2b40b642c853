#include "common/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/file_io.h"
#include "common/json_fields.h"
#include "common/status_macros.h"
#include "common/text.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "values are copied as they lie in memory");
static_assert(sizeof(float) == 4);

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kAlignmentBytes = 8;
constexpr std::size_t kMaxHeaderBytes = 16 << 20;
constexpr std::size_t kMaxHeaderDepth = 4;  ///< file {tensor {shape [..]}} and one to spare
constexpr std::size_t kMaxDimensions = 16;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 40;
constexpr const char* kMetadataKey = "__metadata__";

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return str_cat("[", absl::StrJoin(shape, ", "), "]");
}

/// Elements of a shape of non-negative dimensions; nothing when there are more than a file can
/// hold.
std::optional<std::uint64_t> checked_count(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  bool is_empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      is_empty = true;
      continue;
    }
    if (count > kMaxFileBytes / static_cast<std::uint64_t>(dimension)) return std::nullopt;
    count *= static_cast<std::uint64_t>(dimension);
  }
  return is_empty ? 0 : count;
}

absl::Status check_view(const TensorView& tensor, std::set<std::string_view>& names) {
  if (tensor.name.empty() || tensor.name == kMetadataKey) {
    return absl::InvalidArgumentError(
        str_cat("safetensors: \"", tensor.name, "\" cannot be the name of a tensor"));
  }
  if (!names.insert(tensor.name).second) {
    return absl::InvalidArgumentError(
        str_cat("safetensors: two tensors are named \"", tensor.name, "\""));
  }
  if (tensor.shape.size() > kMaxDimensions || checked_count(tensor.shape) != tensor.values.size()) {
    return absl::InvalidArgumentError(str_cat("safetensors: tensor \"", tensor.name, "\": shape ",
                                              shape_text(tensor.shape), " does not fit its ",
                                              tensor.values.size(), " values"));
  }
  return absl::OkStatus();
}

/// Length and header, padded so that the data start aligned.
absl::StatusOr<std::string> encode_header(std::span<const TensorView> tensors,
                                          const SafetensorsMetadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::set<std::string_view> names;
  std::uint64_t offset_bytes = 0;
  for (const TensorView& tensor : tensors) {
    POSEIDON_RETURN_IF_ERROR(check_view(tensor, names));
    const std::uint64_t end_bytes = offset_bytes + tensor.values.size_bytes();
    header[tensor.name] = {{"dtype", "F32"},
                           {"shape", Json(tensor.shape)},
                           {"data_offsets", Json::array({offset_bytes, end_bytes})}};
    offset_bytes = end_bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {  // the only complaint of dump
    return absl::InvalidArgumentError("safetensors: a name or a metadata text is not UTF-8");
  }
  text.resize((text.size() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(str_cat("safetensors: the header of ", tensors.size(),
                                              " tensors takes ", text.size(), " bytes, at most ",
                                              kMaxHeaderBytes, " are allowed"));
  }
  const auto length = static_cast<std::uint64_t>(text.size());
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + text;
}

std::string_view bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

/// What the header says of one tensor, before its values are read.
struct Entry {
  Tensor tensor;
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;
};

absl::StatusOr<Entry> parse_entry(const std::string& name, const Json& json,
                                  std::string_view source, std::uint64_t data_bytes) {
  constexpr auto kMaxInteger = static_cast<std::int64_t>(kMaxFileBytes);
  const std::string place = str_cat("header: ", json_excerpt(Json(name)));
  JsonFields fields(json, source, place);
  for (const char* key : {"dtype", "shape", "data_offsets"}) fields.require(key);
  std::string dtype;
  fields.one_of("dtype", &dtype, {"F32"});
  Entry entry;
  entry.tensor.name = name;
  fields.integers("shape", &entry.tensor.shape, 0, kMaxInteger, 0, kMaxDimensions);
  std::vector<std::int64_t> offsets = {0, 0};
  fields.integers("data_offsets", &offsets, 0, kMaxInteger, 2, 2);
  POSEIDON_RETURN_IF_ERROR(fields.finish());

  entry.begin_bytes = static_cast<std::uint64_t>(offsets[0]);
  entry.end_bytes = static_cast<std::uint64_t>(offsets[1]);
  const auto complain = [&](const std::string& message) {
    return absl::InvalidArgumentError(str_cat(source, ": ", place, ": ", message));
  };
  if (entry.begin_bytes > entry.end_bytes || entry.end_bytes > data_bytes) {
    return complain(str_cat("data_offsets [", offsets[0], ", ", offsets[1], "] are not inside the ",
                            data_bytes, " bytes of data; is the file complete?"));
  }
  const std::optional<std::uint64_t> count = checked_count(entry.tensor.shape);
  const std::uint64_t bytes = entry.end_bytes - entry.begin_bytes;
  if (!count || *count > kMaxFileBytes / sizeof(float) || *count * sizeof(float) != bytes) {
    return complain(str_cat("shape ", shape_text(entry.tensor.shape), " of F32 does not fit ",
                            bytes, " bytes of data"));
  }
  return entry;
}

absl::Status parse_metadata(const Json& json, std::string_view source,
                            SafetensorsMetadata& metadata) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        str_cat(source, ": header: ", kMetadataKey, ": expected an object of texts"));
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(str_cat(source, ": header: ", kMetadataKey, ": ",
                                                json_excerpt(Json(key)), ": expected a text, got ",
                                                json_excerpt(value)));
    }
    metadata[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

/// In order of their bytes, and every byte of the data in exactly one tensor.
absl::Status sort_and_check_cover(std::vector<Entry>& entries, std::string_view source,
                                  std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin_bytes, a.end_bytes) < std::pair(b.begin_bytes, b.end_bytes);
  });
  std::uint64_t covered_bytes = 0;
  for (const Entry& entry : entries) {
    if (entry.begin_bytes != covered_bytes) {
      return absl::InvalidArgumentError(str_cat(
          source, ": header: ", json_excerpt(Json(entry.tensor.name)), ": starts at byte ",
          entry.begin_bytes, ", ",
          entry.begin_bytes < covered_bytes ? "inside the tensor before it" : "after a hole",
          ": expected ", covered_bytes));
    }
    covered_bytes = entry.end_bytes;
  }
  if (covered_bytes != data_bytes) {
    return absl::InvalidArgumentError(str_cat(source, ": ", data_bytes - covered_bytes,
                                              " bytes after the last tensor belong to nothing"));
  }
  return absl::OkStatus();
}

}  // namespace

const Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const Tensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

absl::StatusOr<std::string> encode_safetensors(std::span<const TensorView> tensors,
                                               const SafetensorsMetadata& metadata) {
  POSEIDON_ASSIGN_OR_RETURN(std::string bytes, encode_header(tensors, metadata));
  std::size_t total = bytes.size();
  for (const TensorView& tensor : tensors) total += tensor.values.size_bytes();
  bytes.reserve(total);
  for (const TensorView& tensor : tensors) bytes += bytes_of(tensor.values);
  return bytes;
}

absl::Status write_safetensors(const std::filesystem::path& path,
                               std::span<const TensorView> tensors,
                               const SafetensorsMetadata& metadata) {
  const absl::StatusOr<std::string> header = encode_header(tensors, metadata);
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        str_cat(path.string(), ": ", header.status().message()));
  }
  std::vector<std::string_view> pieces = {*header};
  for (const TensorView& tensor : tensors) pieces.push_back(bytes_of(tensor.values));
  return write_file_atomically(path, pieces);
}

absl::StatusOr<SafetensorsFile> parse_safetensors(std::string_view bytes, std::string_view source) {
  std::uint64_t header_bytes = 0;
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        str_cat(source, ": ", bytes.size(), " bytes are too few for a safetensors file"));
  }
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  bytes.remove_prefix(kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size()) {
    return absl::InvalidArgumentError(
        str_cat(source, ": claims a header of ", header_bytes, " bytes; there are ", bytes.size(),
                " and at most ", kMaxHeaderBytes,
                " are allowed: no safetensors file, or an incomplete one"));
  }
  const std::string_view data = bytes.substr(header_bytes);
  POSEIDON_ASSIGN_OR_RETURN(
      const Json header, parse_json(bytes.substr(0, header_bytes), str_cat(source, ": header"),
                                    {.max_bytes = kMaxHeaderBytes, .max_depth = kMaxHeaderDepth}));
  if (!header.is_object()) {
    return absl::InvalidArgumentError(str_cat(source, ": header: expected an object {...}"));
  }

  SafetensorsFile file;
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadataKey) {
      POSEIDON_RETURN_IF_ERROR(parse_metadata(json, source, file.metadata));
      continue;
    }
    POSEIDON_ASSIGN_OR_RETURN(Entry entry, parse_entry(name, json, source, data.size()));
    entries.push_back(std::move(entry));
  }
  POSEIDON_RETURN_IF_ERROR(sort_and_check_cover(entries, source, data.size()));
  // Only now is memory taken: together as much as the data, which we hold already.
  for (Entry& entry : entries) {
    const std::size_t size_bytes = entry.end_bytes - entry.begin_bytes;
    entry.tensor.values.resize(size_bytes / sizeof(float));
    if (size_bytes > 0) {
      std::memcpy(entry.tensor.values.data(), data.data() + entry.begin_bytes, size_bytes);
    }
    file.tensors.push_back(std::move(entry.tensor));
  }
  return file;
}

absl::StatusOr<SafetensorsFile> load_safetensors(const std::filesystem::path& path) {
  POSEIDON_ASSIGN_OR_RETURN(const std::string bytes, read_file(path, kMaxFileBytes));
  return parse_safetensors(bytes, path.string());
}

}  // namespace poseidon
