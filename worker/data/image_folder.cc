#include "worker/data/image_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/file_io.h"
#include "common/status_macros.h"
#include "common/text.h"

namespace poseidon {
namespace {

enum class EntryKind { kFile, kFolder, kOther };

struct DirectoryCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

/// What a name stands for, links followed. Most file systems say so without a look at the entry.
EntryKind kind_of(const std::string& folder, const dirent& entry) {
  if (entry.d_type == DT_REG) return EntryKind::kFile;
  if (entry.d_type == DT_DIR) return EntryKind::kFolder;
  if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return EntryKind::kOther;
  struct stat info {};
  // A link that leads nowhere counts as a file: a sample that cannot be read.
  if (::stat(str_cat(folder, "/", std::string(entry.d_name)).c_str(), &info) != 0) {
    return EntryKind::kFile;
  }
  return S_ISREG(info.st_mode)   ? EntryKind::kFile
         : S_ISDIR(info.st_mode) ? EntryKind::kFolder
                                 : EntryKind::kOther;
}

bool is_image_name(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  std::string ending(name.substr(dot));
  for (char& letter : ending) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

/// Sorted names in `folder` of the kind that is asked for; at most `max_names`.
absl::StatusOr<std::vector<std::string>> list_names(const std::string& folder, EntryKind kind,
                                                    std::size_t max_names) {
  errno = 0;
  const std::unique_ptr<DIR, DirectoryCloser> directory(::opendir(folder.c_str()));
  if (directory == nullptr) {
    const std::string message =
        str_cat(folder, ": cannot list the folder: ", std::string(std::strerror(errno)));
    if (errno == ENOENT) return absl::NotFoundError(message);
    return absl::InvalidArgumentError(message);
  }
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] == '.' || kind_of(folder, *entry) != kind) continue;
    if (kind == EntryKind::kFile && !is_image_name(entry->d_name)) continue;
    if (names.size() == max_names) {
      return absl::InvalidArgumentError(
          str_cat(folder, ": more than ", max_names, " entries; pack them into records"));
    }
    names.emplace_back(entry->d_name);
  }
  if (errno != 0) {
    return absl::InternalError(
        str_cat(folder, ": cannot list the folder: ", std::string(std::strerror(errno))));
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Names lie one after the other in one text: a million strings would cost twice the memory.
class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::string folder, std::vector<std::string> class_names)
      : folder_(std::move(folder)), class_names_(std::move(class_names)) {}

  absl::Status list() {
    for (const std::string& class_name : class_names_) {
      const std::string folder = str_cat(folder_, "/", class_name);
      POSEIDON_ASSIGN_OR_RETURN(
          const std::vector<std::string> names,
          list_names(folder, EntryKind::kFile, kMaxFolderFiles - ends_.size()));
      if (names.empty()) {
        return absl::InvalidArgumentError(
            str_cat(folder,
                    ": this class has no .jpg, .jpeg or .png files; remove the folder, or "
                    "put its images there"));
      }
      for (const std::string& name : names) {
        names_ += name;
        ends_.push_back(names_.size());
      }
      class_ends_.push_back(static_cast<std::int64_t>(ends_.size()));
    }
    names_.shrink_to_fit();
    ends_.shrink_to_fit();
    return absl::OkStatus();
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(ends_.size()); }
  const Shape& sample_shape() const override { return any_shape_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  const std::string& name() const override { return folder_; }

  absl::Status read(std::int64_t index, EncodedSample& sample) const override {
    POSEIDON_CHECK(index >= 0 && index < size(), "sample index out of range");
    POSEIDON_RETURN_IF_ERROR(read_file(sample_name(index), kMaxImageFileBytes, sample.buffer));
    sample.encoding = Encoding::kImage;
    sample.label = label_of(index);
    sample.bytes = sample.buffer;
    return absl::OkStatus();
  }

  std::string sample_name(std::int64_t index) const override {
    const auto i = static_cast<std::size_t>(index);
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    const auto& class_name = class_names_[static_cast<std::size_t>(label_of(index))];
    return str_cat(folder_, "/", class_name, "/",
                   std::string_view(names_).substr(begin, ends_[i] - begin));
  }

 private:
  std::int32_t label_of(std::int64_t index) const {
    const auto place = std::upper_bound(class_ends_.begin(), class_ends_.end(), index);
    return static_cast<std::int32_t>(place - class_ends_.begin());
  }

  const std::string folder_;
  const Shape any_shape_ = {0, 0, 0};
  const std::vector<std::string> class_names_;
  // Constant after list().
  std::string names_;
  std::vector<std::size_t> ends_;         ///< of each sample's name in names_
  std::vector<std::int64_t> class_ends_;  ///< by label: index behind its last sample
};

}  // namespace

absl::StatusOr<std::vector<std::string>> list_classes(const std::filesystem::path& folder) {
  POSEIDON_ASSIGN_OR_RETURN(std::vector<std::string> names,
                            list_names(folder.string(), EntryKind::kFolder, kMaxFolderClasses));
  if (names.empty()) {
    return absl::InvalidArgumentError(
        str_cat(folder.string(), ": has no sub-folders; an image folder has one for each class"));
  }
  return names;
}

absl::StatusOr<std::shared_ptr<const Dataset>> open_image_folder(
    const std::filesystem::path& folder, std::int64_t classes) {
  POSEIDON_ASSIGN_OR_RETURN(std::vector<std::string> names, list_classes(folder));
  if (static_cast<std::int64_t>(names.size()) > classes) {
    return absl::InvalidArgumentError(str_cat(folder.string(), ": has ", names.size(),
                                              " class folders, the network tells ", classes,
                                              " classes apart"));
  }
  auto images = std::make_shared<ImageFolder>(folder.string(), std::move(names));
  POSEIDON_RETURN_IF_ERROR(images->list());
  return images;
}

}  // namespace poseidon
