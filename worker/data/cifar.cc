#include "worker/data/cifar.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/file_io.h"
#include "common/status_macros.h"
#include "common/text.h"

namespace poseidon {
namespace {

constexpr std::size_t kPixelBytes = 3 * 32 * 32;
constexpr std::size_t kRecordBytes = 1 + kPixelBytes;
constexpr std::int64_t kCifar10Classes = 10;
constexpr std::uint64_t kMaxCifarBytes = std::uint64_t{4} << 30;  ///< of all files together

}  // namespace

absl::Status decode_cifar10(std::string_view file_bytes, std::string_view source,
                            std::int64_t classes, std::vector<std::uint8_t>& pixels,
                            std::vector<std::uint8_t>& labels) {
  if (file_bytes.empty() || file_bytes.size() % kRecordBytes != 0) {
    const bool is_gzip = file_bytes.starts_with("\x1f\x8b");
    return absl::InvalidArgumentError(str_cat(
        source, ": ", file_bytes.size(), " bytes are not one or more records of ", kRecordBytes,
        is_gzip ? "; it is a gzip file, unpack it first"
                : "; is it truncated, or not CIFAR-10 in binary form?"));
  }
  const std::size_t records = file_bytes.size() / kRecordBytes;
  const std::int64_t allowed = std::min(classes, kCifar10Classes);
  for (std::size_t i = 0; i < records; ++i) {
    const auto label = static_cast<std::uint8_t>(file_bytes[i * kRecordBytes]);
    if (label < allowed) continue;
    return absl::InvalidArgumentError(
        str_cat(source, ": label ", i, " is ", label, ", expected 0 to ", allowed - 1,
                " (the network tells ", classes, " classes apart, CIFAR-10 has 10)"));
  }
  for (std::size_t i = 0; i < records; ++i) {
    const std::string_view record = file_bytes.substr(i * kRecordBytes, kRecordBytes);
    labels.push_back(static_cast<std::uint8_t>(record[0]));
    pixels.insert(pixels.end(), record.begin() + 1, record.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Dataset>> open_cifar10_dataset(
    const std::vector<std::string>& files, std::int64_t classes) {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  for (const std::string& file : files) {
    POSEIDON_ASSIGN_OR_RETURN(const std::string bytes,
                              read_file(file, kMaxCifarBytes - pixels.size() - labels.size()));
    POSEIDON_RETURN_IF_ERROR(decode_cifar10(bytes, file, classes, pixels, labels));
  }
  if (labels.empty()) return absl::InvalidArgumentError("data.files: names no file");
  const std::string name = files.size() == 1
                               ? files.front()
                               : str_cat(files.front(), " and ", files.size() - 1, " more");
  return std::make_shared<const MemoryDataset>(name, Shape{3, 32, 32}, std::move(pixels),
                                               std::move(labels));
}

}  // namespace poseidon
