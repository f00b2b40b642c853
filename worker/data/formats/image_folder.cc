#include "worker/data/formats/image_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"

namespace poseidon {
namespace {

enum class EntryKind { kFile, kFolder, kOther };

struct DirectoryCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

/// What a name stands for, links followed. Most file systems say so without a look at the entry.
absl::StatusOr<EntryKind> kind_of(const std::string& folder, const dirent& entry) {
  if (entry.d_type == DT_REG) return EntryKind::kFile;
  if (entry.d_type == DT_DIR) return EntryKind::kFolder;
  if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return EntryKind::kOther;
  const std::string path = str_cat(folder, "/", std::string(entry.d_name));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return absl::InvalidArgumentError(
        str_cat(path, ": cannot be inspected, and may be a class folder: ",
                std::string(std::strerror(errno)), "; repair it, or remove it"));
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

/// Calls `body` for each entry that is not hidden, until it is not OK.
absl::Status for_each_entry(const std::string& folder,
                            const std::function<absl::Status(const dirent&)>& body) {
  errno = 0;
  const std::unique_ptr<DIR, DirectoryCloser> directory(::opendir(folder.c_str()));
  if (directory == nullptr) {
    const int error = errno;
    const std::string message =
        str_cat(folder, ": cannot list the folder: ", std::string(std::strerror(error)));
    if (error == ENOENT) return absl::NotFoundError(message);
    return error == ENOTDIR || error == EACCES ? absl::InvalidArgumentError(message)
                                               : absl::InternalError(message);
  }
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.') POSEIDON_RETURN_IF_ERROR(body(*entry));
  }
  if (errno != 0) {
    return absl::InternalError(
        str_cat(folder, ": cannot list the folder: ", std::string(std::strerror(errno))));
  }
  return absl::OkStatus();
}

/// Which folder a path leads to: another one, or none, when a disk or share is no longer mounted
/// there.
struct FolderIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FolderIdentity&) const = default;

  static FolderIdentity of(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return {};
    return {.device = info.st_dev, .inode = info.st_ino};
  }
};

/// Entries of class folders that are no samples.
struct LeftAside {
  std::int64_t files = 0, folders = 0;
  std::string first_file, first_folder;
};

/// Sorted names of the images in a class's folder; at most `max_names`.
absl::StatusOr<std::vector<std::string>> list_images(const std::string& folder,
                                                     std::size_t max_names, LeftAside& aside) {
  std::vector<std::string> names;
  const auto take = [&](const dirent& entry) -> absl::Status {
    const std::string name = entry.d_name;
    const bool is_image = is_image_name(name);
    // A link is taken by its name: to look at a million of them would take minutes on a share.
    const bool is_taken_for_file = entry.d_type == DT_REG || (entry.d_type == DT_LNK && is_image);
    EntryKind kind = EntryKind::kFile;
    if (!is_taken_for_file) {
      const absl::StatusOr<EntryKind> looked = kind_of(folder, entry);
      // What cannot be inspected is a sample that cannot be read.
      kind = looked.ok() ? *looked : EntryKind::kFile;
    }
    if (kind == EntryKind::kFolder && aside.folders++ == 0) {
      aside.first_folder = str_cat(folder, "/", name);
    }
    if (kind == EntryKind::kFile && !is_image && aside.files++ == 0) {
      aside.first_file = str_cat(folder, "/", name);
    }
    if (kind != EntryKind::kFile || !is_image) return absl::OkStatus();
    if (names.size() == max_names) {
      return absl::InvalidArgumentError(str_cat(folder, ": with its images there are more than ",
                                                kMaxFolderFiles, "; pack them into records"));
    }
    names.push_back(name);
    return absl::OkStatus();
  };
  POSEIDON_RETURN_IF_ERROR(for_each_entry(folder, take));
  std::sort(names.begin(), names.end());
  return names;
}

/// Names lie one after the other in one text: a million strings would cost twice the memory.
class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::string folder, std::vector<std::string> class_names)
      : folder_(std::move(folder)), class_names_(std::move(class_names)) {}

  absl::Status list() {
    identity_ = FolderIdentity::of(folder_);
    for (const std::string& class_name : class_names_) {
      const std::string folder = str_cat(folder_, "/", class_name);
      LeftAside aside;
      POSEIDON_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                                list_images(folder, kMaxFolderFiles - ends_.size(), aside));
      if (names.empty()) {
        const std::string where =
            aside.folders > 0 ? str_cat(" (is what is in ", aside.first_folder, " meant?)") : "";
        return absl::InvalidArgumentError(
            str_cat(folder, ": this class has no .jpg, .jpeg or .png files; remove the folder, or ",
                    "put its images there", where));
      }
      leave_aside(aside);
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

  std::vector<std::string> remarks() const override {
    std::vector<std::string> texts;
    if (aside_.files > 0) {
      texts.push_back(str_cat(folder_,
                              ": in its class folders are files that are no .jpg, .jpeg or "
                              ".png, and no samples: ",
                              aside_.files, ", the first ", aside_.first_file));
    }
    if (aside_.folders > 0) {
      texts.push_back(str_cat(folder_,
                              ": in its class folders are folders, in which no samples are "
                              "looked for: ",
                              aside_.folders, ", the first ", aside_.first_folder));
    }
    return texts;
  }

  absl::Status read(std::int64_t index, EncodedSample& sample) const override {
    POSEIDON_CHECK(index >= 0 && index < size(), "sample index out of range");
    const absl::Status read = read_file(sample_name(index), kMaxImageFileBytes, sample.buffer);
    if (!read.ok()) return is_still_there(label_of(index)) ? read : is_gone(read);
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
  /// Whether the folder is still the one that was listed, apart from single files.
  bool is_still_there(std::int32_t label) const {
    const auto& class_name = class_names_[static_cast<std::size_t>(label)];
    return FolderIdentity::of(folder_) == identity_ &&
           FolderIdentity::of(str_cat(folder_, "/", class_name)) != FolderIdentity();
  }
  /// No sample's fault, and others would stand in for all of them.
  absl::Status is_gone(const absl::Status& read) const {
    return absl::InternalError(str_cat(folder_,
                                       " is no longer the folder that was listed: is its disk or "
                                       "share still there? (",
                                       from_absl(read.message()), ")"));
  }
  void leave_aside(const LeftAside& of_class) {
    if (aside_.files == 0) aside_.first_file = of_class.first_file;
    if (aside_.folders == 0) aside_.first_folder = of_class.first_folder;
    aside_.files += of_class.files;
    aside_.folders += of_class.folders;
  }
  std::int32_t label_of(std::int64_t index) const {
    const auto place = std::upper_bound(class_ends_.begin(), class_ends_.end(), index);
    return static_cast<std::int32_t>(place - class_ends_.begin());
  }

  const std::string folder_;
  const Shape any_shape_ = {0, 0, 0};
  const std::vector<std::string> class_names_;
  // Constant after list().
  FolderIdentity identity_;
  std::string names_;
  std::vector<std::size_t> ends_;         ///< of each sample's name in names_
  std::vector<std::int64_t> class_ends_;  ///< by label: index behind its last sample
  LeftAside aside_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> list_classes(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  const auto take = [&](const dirent& entry) -> absl::Status {
    // One that is passed over moves the labels of those behind it.
    POSEIDON_ASSIGN_OR_RETURN(const EntryKind kind, kind_of(folder.string(), entry));
    if (kind != EntryKind::kFolder) return absl::OkStatus();
    if (names.size() == kMaxFolderClasses) {
      return absl::InvalidArgumentError(str_cat(folder.string(), ": more than ", kMaxFolderClasses,
                                                " class folders; pack them into records"));
    }
    names.emplace_back(entry.d_name);
    return absl::OkStatus();
  };
  POSEIDON_RETURN_IF_ERROR(for_each_entry(folder.string(), take));
  if (names.empty()) {
    return absl::InvalidArgumentError(
        str_cat(folder.string(), ": has no sub-folders; an image folder has one for each class"));
  }
  std::sort(names.begin(), names.end());
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
