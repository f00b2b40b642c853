#pragma once

// A folder with one sub-folder per class, the images of the class inside. Samples stay encoded;
// sample_reader.h decodes them.
//
// Called by: worker/data/formats/dataset.h. Calls: the file system.
//
// The classes' names, sorted byte by byte, give the labels from 0 on; inside a class the files are
// sorted alike, and the samples of the set are those of class 0, then of class 1 and so on. A
// sample is a file (or a link to one) named .jpg, .jpeg or .png in letters of either case, directly
// in the folder of its class. Everything else is skipped: other names, folders inside classes,
// files beside classes, names that begin with a dot. A file's content is checked when it is read.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

inline constexpr std::uint64_t kMaxImageFileBytes = 64 << 20;
inline constexpr std::size_t kMaxFolderClasses = 1 << 20;
inline constexpr std::size_t kMaxFolderFiles = std::size_t{1} << 28;

/// Names of the class folders, sorted. NOT_FOUND, or INVALID_ARGUMENT when there are none.
absl::StatusOr<std::vector<std::string>> list_classes(const std::filesystem::path& folder);

/// Lists the files and opens none. INVALID_ARGUMENT for more classes than `classes`, or one without
/// images.
absl::StatusOr<std::shared_ptr<const Dataset>> open_image_folder(
    const std::filesystem::path& folder, std::int64_t classes);

}  // namespace poseidon
