#include "common/files/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr std::uint64_t kReadPieceBytes = 1 << 20;
constexpr std::uint64_t kMinReadPieceBytes = 4 << 10;
constexpr std::size_t kWritePieceBytes = 64 << 20;  // Linux moves less than 2 GiB per write

constexpr std::string_view kTemporary = ".tmp-";

std::filesystem::path unique_temporary(const std::filesystem::path& path) {
  // Unique among the threads and processes of this machine.
  static std::atomic<std::uint64_t> next_number{0};
  std::filesystem::path temporary = path;
  temporary += str_cat(kTemporary, ::getpid(), "-", next_number.fetch_add(1));
  return temporary;
}

template <typename Bytes>
absl::Status read_into(const std::filesystem::path& path, std::uint64_t max_bytes, Bytes& bytes) {
  POSEIDON_ASSIGN_OR_RETURN(const Descriptor file, open_file(path));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return system_error(path, "cannot read", errno);
  // Only a hint: the size may change while we read, and some file systems report none.
  const auto reported_bytes = static_cast<std::uint64_t>(std::max<off_t>(info.st_size, 0));
  bytes.clear();
  while (true) {
    const std::size_t used = bytes.size();
    // One byte more than is reported, so that the end shows without another piece.
    const std::uint64_t expected = reported_bytes > used ? reported_bytes - used + 1 : 1;
    const std::uint64_t piece = std::clamp(expected, kMinReadPieceBytes, kReadPieceBytes);
    const std::uint64_t wanted = std::min(piece, max_bytes + 1 - used);
    bytes.resize(used + wanted);
    const ssize_t got = ::read(file.get(), bytes.data() + used, wanted);
    if (got < 0 && errno == EINTR) {
      bytes.resize(used);
      continue;
    }
    if (got < 0) return system_error(path, "cannot read", errno);
    bytes.resize(used + static_cast<std::size_t>(got));
    if (got == 0) return absl::OkStatus();
    if (bytes.size() > max_bytes) {
      return absl::InvalidArgumentError(
          str_cat(path.string(), ": is larger than the ", max_bytes, " bytes allowed"));
    }
  }
}

}  // namespace

absl::Status system_error(const std::filesystem::path& path, std::string_view what, int error) {
  const std::string message =
      str_cat(path.string(), ": ", what, ": ", std::string(std::strerror(error)));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:  // a link that leads nowhere, too
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case EEXIST:
    case ENOTEMPTY:
      return absl::AlreadyExistsError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

int exclusive_rename(const char* from, const char* to) {
  return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
}

absl::Status rename_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                           ExclusiveRename rename) {
  constexpr std::string_view kWhat = "cannot give the folder this name";
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  // "Not with this flag": of the file system or, for ENOSYS, of the kernel.
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) return system_error(to, kWhat, errno);
  struct stat info {};
  if (::lstat(to.c_str(), &info) == 0) return system_error(to, kWhat, EEXIST);
  if (errno != ENOENT) return system_error(to, kWhat, errno);
  // Fails for a name that a folder with something in it, or a file, has been given since.
  if (::rename(from.c_str(), to.c_str()) != 0) return system_error(to, kWhat, errno);
  return absl::OkStatus();
}

absl::StatusOr<Descriptor> open_file(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe without a writer would block.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return system_error(path, "cannot open", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return system_error(path, "cannot read", errno);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(str_cat(path.string(), ": is a folder, not a file"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        str_cat(path.string(), ": is a pipe or a device, not a regular file"));
  }
  return file;
}

std::filesystem::path path_from(const std::filesystem::path& folder,
                                const std::filesystem::path& path) {
  std::filesystem::path way_out = folder, rest;
  for (const std::filesystem::path& part : path) {
    rest /= part;
    if (part == "..") way_out /= std::exchange(rest, {});
  }
  if (way_out == folder) return (folder / path).lexically_normal();
  std::error_code error;
  const std::filesystem::path there = std::filesystem::weakly_canonical(way_out, error);
  return ((error ? way_out : there) / rest).lexically_normal();
}

void resolve_path(std::string& path, const std::filesystem::path& folder) {
  if (!path.empty()) path = path_from(folder, path).string();
}

absl::Status create_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return folder_error(path, "cannot create this folder", error.value());
}

absl::Status folder_error(const std::filesystem::path& path, std::string_view what, int error) {
  absl::Status status = system_error(path, what, error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ESTALE:
      return status;
    default:
      return absl::InvalidArgumentError(status.message());
  }
}

absl::StatusOr<Descriptor> lock_file(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.is_open()) return system_error(path, "cannot create", errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {  // of some network file systems
      return system_error(path, "cannot lock (the file system may not support it)", errno);
    }
    return absl::AlreadyExistsError(str_cat(path.string(), ": another process has locked it"));
  }
  return file;
}

absl::StatusOr<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  std::string bytes;
  POSEIDON_RETURN_IF_ERROR(read_into(path, max_bytes, bytes));
  return bytes;
}

absl::Status read_file(const std::filesystem::path& path, std::uint64_t max_bytes,
                       std::vector<std::uint8_t>& bytes) {
  return read_into(path, max_bytes, bytes);
}

absl::Status read_exactly_at(int fd, const std::filesystem::path& path, std::uint64_t offset,
                             std::uint8_t* out, std::size_t size) {
  while (size > 0) {
    const ssize_t got = ::pread(fd, out, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path, "cannot read", errno);
    if (got == 0) {
      return absl::DataLossError(str_cat(path.string(), ": ends ", size, " bytes too early"));
    }
    out += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status write_fully(int fd, const std::filesystem::path& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size(), kWritePieceBytes));
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_error(path, "cannot write", errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

AtomicFile::AtomicFile(std::filesystem::path path, Link link)
    : path_(std::move(path)), link_(link) {}

AtomicFile::~AtomicFile() {
  if (exists_) ::unlink(temporary_.c_str());
}

absl::Status AtomicFile::open() {
  std::error_code error;
  const bool is_link = std::filesystem::is_symlink(path_, error);
  const bool follows = link_ == Link::kFollow;
  const std::filesystem::file_status there =
      is_link && !follows ? std::filesystem::file_status(std::filesystem::file_type::not_found)
                          : std::filesystem::status(path_, error);
  if (is_link && std::filesystem::exists(there)) {
    // The system has followed it: it does not follow another user's link in a world-writable
    // folder.
    const std::filesystem::path target = std::filesystem::canonical(path_, error);
    if (error) return system_error(path_, "cannot follow the link", error.value());
    path_ = target;
  }
  if (std::filesystem::is_directory(there)) {
    return absl::InvalidArgumentError(str_cat(path_.string(), ": is a folder; name a file in it"));
  }
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    return absl::InvalidArgumentError(str_cat(
        path_.string(), ": is a pipe or a device, which a new file would replace; name another"));
  }
  temporary_ = unique_temporary(path_);
  // What a killed process with the same number left behind would make O_EXCL fail.
  ::unlink(temporary_.c_str());
  file_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_.is_open()) return system_error(path_, "cannot create a file beside it", errno);
  exists_ = true;
  return absl::OkStatus();
}

absl::Status AtomicFile::append(std::string_view bytes) {
  return write_fully(file_.get(), path_, bytes);
}

absl::Status AtomicFile::commit() {
  if (::fsync(file_.get()) != 0) return system_error(path_, "cannot write to disk", errno);
  if (!file_.close()) return system_error(path_, "cannot close", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return system_error(path_, "cannot put the new file in its place", errno);
  }
  exists_ = false;
  return sync_folder_of(path_);
}

absl::Status sync_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.is_open() && ::fsync(directory.get()) == 0) return absl::OkStatus();
  return system_error(path, "this is done, but its folder could not be synced", errno);
}

absl::Status remove_durably(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) != 0) {
    return errno == ENOENT ? absl::OkStatus() : system_error(path, "cannot remove", errno);
  }
  return sync_folder_of(path);
}

void remove_leftovers(const std::filesystem::path& path) {
  const std::string prefix = path.filename().string() + std::string(kTemporary);
  const auto is_leftover = [&prefix](const std::string& name) {
    return name.starts_with(prefix) && name.size() > prefix.size() &&
           name.find_first_not_of("0123456789-", prefix.size()) == std::string::npos;
  };
  std::error_code error;  // a file that cannot be removed only wastes its bytes
  std::filesystem::directory_iterator entry(path.parent_path(), error);
  std::vector<std::filesystem::path> leftovers;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (is_leftover(entry->path().filename().string())) leftovers.push_back(entry->path());
  }
  for (const std::filesystem::path& leftover : leftovers) ::unlink(leftover.c_str());
}

absl::Status write_file_atomically(const std::filesystem::path& path,
                                   std::span<const std::string_view> pieces,
                                   AtomicFile::Link link) {
  AtomicFile file(path, link);
  POSEIDON_RETURN_IF_ERROR(file.open());
  for (const std::string_view piece : pieces) POSEIDON_RETURN_IF_ERROR(file.append(piece));
  return file.commit();
}

absl::Status write_file_atomically(const std::filesystem::path& path, std::string_view contents,
                                   AtomicFile::Link link) {
  return write_file_atomically(path, std::span<const std::string_view>(&contents, 1), link);
}

}  // namespace poseidon
