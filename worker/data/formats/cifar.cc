#include "worker/data/formats/cifar.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"

namespace poseidon {
namespace {

constexpr std::size_t kPixelBytes = 3 * 32 * 32;
constexpr std::uint64_t kMaxCifarBytes = std::uint64_t{4} << 30;  ///< of all files together

/// Of one kind of file and label.
struct Layout {
  const char* name;
  std::size_t label_bytes;
  std::size_t label_at;  ///< which of them counts
  std::int64_t classes;
};

constexpr Layout layout_of(CifarKind kind) {
  switch (kind) {
    case CifarKind::kCifar10:
      return {"CIFAR-10", 1, 0, 10};
    case CifarKind::kCifar100Coarse:
      return {"CIFAR-100 (coarse labels)", 2, 0, 20};
    case CifarKind::kCifar100Fine:
      break;
  }
  return {"CIFAR-100", 2, 1, 100};
}

}  // namespace

absl::Status decode_cifar(std::string_view file_bytes, std::string_view source, CifarKind kind,
                          std::int64_t classes, std::vector<std::uint8_t>& pixels,
                          std::vector<std::uint8_t>& labels) {
  const Layout layout = layout_of(kind);
  const std::size_t record_bytes = layout.label_bytes + kPixelBytes;
  if (file_bytes.empty() || file_bytes.size() % record_bytes != 0) {
    const bool is_gzip = file_bytes.starts_with("\x1f\x8b");
    return absl::InvalidArgumentError(str_cat(
        source, ": ", file_bytes.size(), " bytes are not one or more records of ", record_bytes,
        is_gzip ? "; it is a gzip file, unpack it first"
                : str_cat("; is it truncated, or not ", layout.name, " in binary form?")));
  }
  const std::size_t records = file_bytes.size() / record_bytes;
  const std::int64_t allowed = std::min(classes, layout.classes);
  for (std::size_t i = 0; i < records; ++i) {
    const auto label = static_cast<std::uint8_t>(file_bytes[i * record_bytes + layout.label_at]);
    if (label < allowed) continue;
    const std::string why = classes < layout.classes
                                ? str_cat("the network tells ", classes, " classes apart, ",
                                          layout.name, " has ", layout.classes)
                                : str_cat("is it ", layout.name, " in binary form?");
    return absl::InvalidArgumentError(
        str_cat(source, ": label ", i, " is not one of 0 to ", allowed - 1, "; ", why));
  }
  for (std::size_t i = 0; i < records; ++i) {
    const std::string_view record = file_bytes.substr(i * record_bytes, record_bytes);
    labels.push_back(static_cast<std::uint8_t>(record[layout.label_at]));
    pixels.insert(pixels.end(), record.begin() + static_cast<std::ptrdiff_t>(layout.label_bytes),
                  record.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Dataset>> open_cifar_dataset(
    const std::vector<std::string>& files, CifarKind kind, std::int64_t classes) {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  for (const std::string& file : files) {
    POSEIDON_ASSIGN_OR_RETURN(const std::string bytes,
                              read_file(file, kMaxCifarBytes - pixels.size() - labels.size()));
    POSEIDON_RETURN_IF_ERROR(decode_cifar(bytes, file, kind, classes, pixels, labels));
  }
  if (labels.empty()) return absl::InvalidArgumentError("data.files: names no file");
  const std::string name = files.size() == 1
                               ? files.front()
                               : str_cat(files.front(), " and ", files.size() - 1, " more");
  return std::make_shared<const MemoryDataset>(name, Shape{3, 32, 32}, std::move(pixels),
                                               std::move(labels));
}

}  // namespace poseidon
