#include "common/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/files/json_fields.h"
#include "common/tensor/float16.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "values are copied as they lie in memory");
static_assert(sizeof(float) == 4);

constexpr std::size_t kLengthBytes = kSafetensorsLengthBytes;
constexpr std::size_t kAlignmentBytes = 8;
constexpr std::size_t kMaxHeaderBytes = 16 << 20;
constexpr std::size_t kMaxHeaderDepth = 4;  ///< file {tensor {shape [..]}} and one to spare
constexpr std::size_t kMaxDimensions = 16;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 40;
constexpr const char* kMetadataKey = "__metadata__";
constexpr std::size_t kDecodePieceBytes = 1 << 20;  ///< a multiple of every dtype's size

/// Element types and their sizes: the format's, as far as we know them.
constexpr std::pair<std::string_view, std::uint64_t> kDtypes[] = {
    {"F64", 8},  {"F32", 4}, {"F16", 2},     {"BF16", 2},   {"I64", 8}, {"I32", 4},
    {"I16", 2},  {"I8", 1},  {"U64", 8},     {"U32", 4},    {"U16", 2}, {"U8", 1},
    {"BOOL", 1}, {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

/// 0 where it is not known.
std::uint64_t dtype_bytes(std::string_view dtype) {
  const auto* found =
      std::ranges::find(kDtypes, dtype, &std::pair<std::string_view, std::uint64_t>::first);
  return found == std::end(kDtypes) ? 0 : found->second;
}

/// Of this version of the format or a later one.
bool is_dtype_name(std::string_view text) {
  constexpr std::size_t kMaxNameBytes = 16;
  return !text.empty() && text.size() <= kMaxNameBytes && std::ranges::all_of(text, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

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

absl::StatusOr<StoredTensor> parse_entry(const std::string& name, const Json& json,
                                         std::string_view source, std::uint64_t data_bytes) {
  constexpr auto kMaxInteger = static_cast<std::int64_t>(kMaxFileBytes);
  const std::string place = str_cat("header: ", json_excerpt(Json(name)));
  JsonFields fields(json, source, place);
  for (const char* key : {"dtype", "shape", "data_offsets"}) fields.require(key);
  StoredTensor tensor;
  tensor.name = name;
  fields.string("dtype", &tensor.dtype);
  if (fields.ok() && !is_dtype_name(tensor.dtype)) {
    fields.refuse("dtype", str_cat("expected the name of a type, such as \"F32\", got ",
                                   json_excerpt(Json(tensor.dtype))));
  }
  fields.integers("shape", &tensor.shape, 0, kMaxInteger, 0, kMaxDimensions);
  std::vector<std::int64_t> offsets = {0, 0};
  fields.integers("data_offsets", &offsets, 0, kMaxInteger, 2, 2);
  POSEIDON_RETURN_IF_ERROR(fields.finish());

  const auto begin_bytes = static_cast<std::uint64_t>(offsets[0]);
  const auto end_bytes = static_cast<std::uint64_t>(offsets[1]);
  const auto complain = [&](const std::string& message) {
    return absl::InvalidArgumentError(str_cat(source, ": ", place, ": ", message));
  };
  if (begin_bytes > end_bytes || end_bytes > data_bytes) {
    return complain(str_cat("data_offsets [", offsets[0], ", ", offsets[1], "] are not inside the ",
                            data_bytes, " bytes of data; is the file complete?"));
  }
  const std::optional<std::uint64_t> count = checked_count(tensor.shape);
  const std::uint64_t element_bytes = dtype_bytes(tensor.dtype);
  tensor.offset_bytes = begin_bytes;
  tensor.size_bytes = end_bytes - begin_bytes;
  // Whoever wants a tensor of a type that is not known refuses it; the others are none the worse.
  const bool fits = count && (element_bytes == 0 || (*count <= kMaxFileBytes / element_bytes &&
                                                     *count * element_bytes == tensor.size_bytes));
  if (!fits) {
    return complain(str_cat("shape ", shape_text(tensor.shape), " of ", tensor.dtype,
                            " does not fit ", tensor.size_bytes, " bytes of data"));
  }
  tensor.elements = *count;
  return tensor;
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

/// In order of their bytes, and every byte of the data in exactly one tensor. Offsets count from
/// the start of the data.
absl::Status sort_and_check_cover(std::vector<StoredTensor>& tensors, std::string_view source,
                                  std::uint64_t data_bytes) {
  std::ranges::sort(tensors, {}, [](const StoredTensor& tensor) {
    return std::pair(tensor.offset_bytes, tensor.size_bytes);
  });
  std::uint64_t covered_bytes = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.offset_bytes != covered_bytes) {
      return absl::InvalidArgumentError(str_cat(
          source, ": header: ", json_excerpt(Json(tensor.name)), ": starts at byte ",
          tensor.offset_bytes, ", ",
          tensor.offset_bytes < covered_bytes ? "inside the tensor before it" : "after a hole",
          ": expected ", covered_bytes));
    }
    covered_bytes += tensor.size_bytes;
  }
  if (covered_bytes != data_bytes) {
    return absl::InvalidArgumentError(str_cat(source, ": ", data_bytes - covered_bytes,
                                              " bytes after the last tensor belong to nothing"));
  }
  return absl::OkStatus();
}

template <typename Stored, typename Convert>
void convert_each(std::string_view bytes, std::span<float> values, const Convert& convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = convert(stored);
  }
}

}  // namespace

const StoredTensor* SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &StoredTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

// ---- writing ----

std::uint64_t EncodedSafetensors::size_bytes() const {
  std::uint64_t bytes = header.size();
  for (const std::string_view piece : values) bytes += piece.size();
  return bytes;
}

absl::StatusOr<EncodedSafetensors> encode_safetensors(std::span<const TensorView> tensors,
                                                      const SafetensorsMetadata& metadata) {
  EncodedSafetensors encoded;
  POSEIDON_ASSIGN_OR_RETURN(encoded.header, encode_header(tensors, metadata));
  for (const TensorView& tensor : tensors) encoded.values.push_back(bytes_of(tensor.values));
  return encoded;
}

// ---- reading ----

namespace {

/// What people put in a model's place, told by the first 8 bytes.
std::string_view kind_of_other_file(std::string_view first_bytes) {
  if (first_bytes.starts_with("version ")) {
    return "a pointer of Git LFS, not the safetensors file itself: fetch that with `git lfs pull`";
  }
  if (first_bytes.starts_with("PK\x03\x04") || first_bytes.starts_with("\x80\x02")) {
    return "no safetensors file, but looks like one of torch.save: load it in Python and write it "
           "with safetensors.torch.save_file";
  }
  if (first_bytes.starts_with("{") || first_bytes.starts_with("[")) {
    return "no safetensors file, but looks like JSON: name the file with the tensors";
  }
  return "no safetensors file, or an incomplete one";
}

}  // namespace

absl::StatusOr<std::uint64_t> safetensors_header_bytes(std::string_view first_bytes,
                                                       std::uint64_t file_bytes,
                                                       std::string_view source) {
  if (file_bytes < kLengthBytes || first_bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        str_cat(source, ": ", file_bytes, " bytes are too few for a safetensors file"));
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, first_bytes.data(), kLengthBytes);
  // Not with the number that it begins with: in another kind of file these are its first bytes,
  // and a reader of the message may lack the right to read the file.
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(str_cat(
        source, ": is ", kind_of_other_file(first_bytes), " (its ", file_bytes,
        " bytes do not begin with the length of a header of at most ", kMaxHeaderBytes, ")"));
  }
  return kLengthBytes + header_bytes;
}

absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view bytes,
                                                           std::uint64_t file_bytes,
                                                           std::string_view source) {
  POSEIDON_ASSIGN_OR_RETURN(const std::uint64_t data_begin,
                            safetensors_header_bytes(bytes, file_bytes, source));
  POSEIDON_CHECK(bytes.size() >= data_begin, "the whole header");
  const std::uint64_t data_bytes = file_bytes - data_begin;
  POSEIDON_ASSIGN_OR_RETURN(
      const Json json,
      parse_json(bytes.substr(kLengthBytes, data_begin - kLengthBytes), str_cat(source, ": header"),
                 {.max_bytes = kMaxHeaderBytes, .max_depth = kMaxHeaderDepth}));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(str_cat(source, ": header: expected an object {...}"));
  }
  SafetensorsHeader header;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      POSEIDON_RETURN_IF_ERROR(parse_metadata(value, source, header.metadata));
      continue;
    }
    POSEIDON_ASSIGN_OR_RETURN(StoredTensor tensor, parse_entry(name, value, source, data_bytes));
    header.tensors.push_back(std::move(tensor));
  }
  POSEIDON_RETURN_IF_ERROR(sort_and_check_cover(header.tensors, source, data_bytes));
  for (StoredTensor& tensor : header.tensors) tensor.offset_bytes += data_begin;
  return header;
}

bool is_floating_dtype(std::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

void decode_values(std::string_view dtype, std::string_view bytes, std::span<float> values) {
  POSEIDON_CHECK(is_floating_dtype(dtype) && bytes.size() == values.size() * dtype_bytes(dtype),
                 "bytes of a floating dtype, as many as the values take");
  if (values.empty()) return;
  if (dtype == "F32") {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else if (dtype == "F64") {
    convert_each<double>(bytes, values, [](double value) { return static_cast<float>(value); });
  } else if (dtype == "F16") {
    convert_each<std::uint16_t>(bytes, values, from_float16);
  } else {
    convert_each<std::uint16_t>(bytes, values, from_bfloat16);
  }
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::open(const std::filesystem::path& path) {
  POSEIDON_ASSIGN_OR_RETURN(Descriptor file, open_file(path));
  std::error_code error;
  const std::uintmax_t file_bytes = std::filesystem::file_size(path, error);
  if (error) {
    return absl::InternalError(str_cat(path.string(), ": cannot tell its size: ", error.message()));
  }
  SafetensorsReader reader(path, std::move(file));
  std::string bytes(std::min<std::uintmax_t>(file_bytes, kLengthBytes), '\0');
  const auto read_all = [&] {
    return read_exactly_at(reader.file_.get(), path, 0,
                           reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size());
  };
  POSEIDON_RETURN_IF_ERROR(read_all());
  POSEIDON_ASSIGN_OR_RETURN(const std::uint64_t header_bytes,
                            safetensors_header_bytes(bytes, file_bytes, path.string()));
  bytes.resize(header_bytes);
  POSEIDON_RETURN_IF_ERROR(read_all());
  POSEIDON_ASSIGN_OR_RETURN(reader.header_,
                            parse_safetensors_header(bytes, file_bytes, path.string()));
  return reader;
}

absl::Status SafetensorsReader::read(const StoredTensor& tensor, std::span<float> values) const {
  POSEIDON_CHECK(values.size() == tensor.elements, "room for all values of the tensor");
  const std::uint64_t element_bytes = dtype_bytes(tensor.dtype);
  std::vector<std::uint8_t> piece(std::min<std::uint64_t>(tensor.size_bytes, kDecodePieceBytes));
  std::uint64_t offset_bytes = 0;
  while (offset_bytes < tensor.size_bytes) {
    const std::uint64_t size =
        std::min<std::uint64_t>(piece.size(), tensor.size_bytes - offset_bytes);
    POSEIDON_RETURN_IF_ERROR(read_exactly_at(file_.get(), path_, tensor.offset_bytes + offset_bytes,
                                             piece.data(), size));
    decode_values(tensor.dtype, {reinterpret_cast<const char*>(piece.data()), size},
                  values.subspan(offset_bytes / element_bytes, size / element_bytes));
    offset_bytes += size;
  }
  return absl::OkStatus();
}

}  // namespace poseidon
