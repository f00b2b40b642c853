#include "worker/data/formats/idx.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "worker/data/formats/gzip.h"

namespace poseidon {
namespace {

constexpr std::size_t kMagicBytes = 4;
constexpr std::size_t kMaxDimensions = 4;
constexpr std::uint8_t kUint8Type = 0x08;

absl::Status error(std::string_view source, std::string_view message) {
  return absl::InvalidArgumentError(str_cat(source, ": ", message));
}

absl::Status check_magic(const std::uint8_t* magic, std::string_view source) {
  if (magic[0] != 0 || magic[1] != 0) {
    return error(source, "is neither IDX (it would begin with two zero bytes) nor gzip");
  }
  if (magic[2] != kUint8Type) {
    return error(source, "is no IDX file of bytes (uint8), the only element type that is read");
  }
  if (magic[3] < 1 || magic[3] > kMaxDimensions) {
    return error(source, "is an IDX file with neither 1 dimension (labels) nor 3 (images)");
  }
  return absl::OkStatus();
}

/// Fills dimensions from the header and returns how many elements they promise.
absl::StatusOr<std::uint64_t> read_dimensions(const std::uint8_t* bytes, std::size_t count,
                                              std::string_view source,
                                              std::vector<std::int64_t>& dimensions) {
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t dimension = 0;
    for (std::size_t j = 0; j < 4; ++j) dimension = (dimension << 8) | bytes[4 * i + j];
    if (dimension == 0) return error(source, str_cat("is empty: dimension ", i, " is 0"));
    if (elements > kMaxIdxBytes / dimension) {
      return error(source, str_cat("the header promises more than the ", kMaxIdxBytes,
                                   " elements allowed; is it corrupt?"));
    }
    elements *= dimension;
    dimensions.push_back(dimension);
  }
  return elements;
}

absl::Status truncated(std::string_view source, std::uint64_t got, std::uint64_t expected) {
  return error(source, str_cat("is truncated: ", got, " of ", expected, " bytes after unpacking"));
}

/// Reads exactly `buffer` or says that the file is too short.
absl::Status read_exactly(ByteReader& reader, std::uint8_t* buffer, std::size_t size,
                          std::string_view source) {
  POSEIDON_ASSIGN_OR_RETURN(const std::size_t got, reader.read(buffer, size));
  return got == size ? absl::OkStatus() : truncated(source, got, size);
}

absl::StatusOr<IdxArray> load_idx(const std::filesystem::path& path) {
  absl::StatusOr<std::string> bytes = read_file(path, kMaxIdxBytes);
  if (bytes.ok()) return decode_idx(*bytes, path.string());
  if (!absl::IsNotFound(bytes.status())) return bytes.status();
  // The usual slip: MNIST's files are named with .gz before they are unpacked and without after.
  std::filesystem::path other = path;
  if (path.extension() == ".gz") {
    other.replace_extension();
  } else {
    other += ".gz";
  }
  std::error_code ignored;
  const bool is_there = std::filesystem::is_regular_file(other, ignored);
  return absl::NotFoundError(str_cat(from_absl(bytes.status().message()),
                                     is_there ? "; there is " : "",
                                     is_there ? other.string() : ""));
}

}  // namespace

absl::StatusOr<IdxArray> decode_idx(std::string_view file_bytes, std::string_view source) {
  ByteReader reader(file_bytes, source);
  std::array<std::uint8_t, kMagicBytes> magic = {};
  POSEIDON_RETURN_IF_ERROR(read_exactly(reader, magic.data(), magic.size(), source));
  POSEIDON_RETURN_IF_ERROR(check_magic(magic.data(), source));
  std::array<std::uint8_t, 4 * kMaxDimensions> header = {};
  POSEIDON_RETURN_IF_ERROR(read_exactly(reader, header.data(), std::size_t{4} * magic[3], source));
  IdxArray array;
  POSEIDON_ASSIGN_OR_RETURN(const std::uint64_t expected,
                            read_dimensions(header.data(), magic[3], source, array.dimensions));

  constexpr std::uint64_t kPieceBytes = 1 << 20;
  while (array.values.size() < expected) {
    const std::size_t used = array.values.size();
    const std::uint64_t piece = std::min(kPieceBytes, expected - used);
    array.values.resize(used + piece);
    POSEIDON_ASSIGN_OR_RETURN(const std::size_t got,
                              reader.read(array.values.data() + used, piece));
    if (got < piece) return truncated(source, used + got, expected);
  }
  // Also drives gzip to its end, where the checksum is.
  std::uint8_t extra = 0;
  POSEIDON_ASSIGN_OR_RETURN(const std::size_t extra_bytes, reader.read(&extra, 1));
  if (extra_bytes != 0) {
    return error(source, str_cat("has bytes after the ", expected,
                                 " elements that its header promises; is it corrupt?"));
  }
  return array;
}

absl::StatusOr<std::shared_ptr<const Dataset>> open_idx_dataset(const std::filesystem::path& images,
                                                                const std::filesystem::path& labels,
                                                                std::int64_t classes) {
  POSEIDON_ASSIGN_OR_RETURN(IdxArray pixels, load_idx(images));
  if (pixels.dimensions.size() != 3) {
    return error(images.string(), str_cat("has ", pixels.dimensions.size(),
                                          " dimensions; images have 3 (count, height, width)"));
  }
  POSEIDON_ASSIGN_OR_RETURN(IdxArray numbers, load_idx(labels));
  if (numbers.dimensions.size() != 1) {
    return error(labels.string(),
                 str_cat("has ", numbers.dimensions.size(), " dimensions; labels have 1 (count)"));
  }
  if (pixels.dimensions[0] != numbers.dimensions[0]) {
    return error(images.string(),
                 str_cat("has ", pixels.dimensions[0], " images, but ", labels.string(), " has ",
                         numbers.dimensions[0], " labels"));
  }
  for (std::size_t i = 0; i < numbers.values.size(); ++i) {
    if (numbers.values[i] < classes) continue;
    return error(labels.string(),
                 str_cat("label ", i, " is ", numbers.values[i], ", the network tells ", classes,
                         " classes apart (0 to ", classes - 1, ")"));
  }
  return std::make_shared<const MemoryDataset>(images.string(),
                                               Shape{1, pixels.dimensions[1], pixels.dimensions[2]},
                                               std::move(pixels.values), std::move(numbers.values));
}

}  // namespace poseidon
