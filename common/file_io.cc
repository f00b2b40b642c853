#include "common/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/status_macros.h"
#include "common/text.h"

namespace poseidon {
namespace {

constexpr std::uint64_t kReadPieceBytes = 1 << 20;
constexpr std::size_t kWritePieceBytes = 64 << 20;  // Linux moves less than 2 GiB per write

/// Owns a file descriptor; close errors matter only where data was written, see close_checked.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int close_checked() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

absl::Status system_error(const std::filesystem::path& path, std::string_view what, int error) {
  const std::string message =
      str_cat(path.string(), ": ", what, ": ", std::string(std::strerror(error)));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status write_all(const File& file, const std::filesystem::path& path,
                       std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(file.fd(), bytes.data(), std::min(bytes.size(), kWritePieceBytes));
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_error(path, "cannot write", errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status write_synced(const std::filesystem::path& temporary, const std::filesystem::path& path,
                          std::span<const std::string_view> pieces) {
  File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.is_open()) return system_error(path, "cannot create a file beside it", errno);
  for (const std::string_view piece : pieces) {
    POSEIDON_RETURN_IF_ERROR(write_all(file, path, piece));
  }
  if (::fsync(file.fd()) != 0) return system_error(path, "cannot write to disk", errno);
  if (file.close_checked() != 0) return system_error(path, "cannot close", errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  // O_NONBLOCK: the open of a pipe without a writer would wait for ever.
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return system_error(path, "cannot open", errno);
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) return system_error(path, "cannot read", errno);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(str_cat(path.string(), ": is a folder, not a file"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        str_cat(path.string(), ": is a pipe or a device, not a regular file"));
  }
  std::string bytes;
  // Only a hint: the size may change while we read, and some file systems report none.
  const auto reported_bytes = static_cast<std::uint64_t>(std::max<off_t>(info.st_size, 0));
  bytes.reserve(std::min(reported_bytes, max_bytes) + kReadPieceBytes);
  while (true) {
    const std::size_t used = bytes.size();
    const std::uint64_t wanted = std::min<std::uint64_t>(kReadPieceBytes, max_bytes + 1 - used);
    bytes.resize(used + wanted);
    const ssize_t got = ::read(file.fd(), bytes.data() + used, wanted);
    if (got < 0 && errno == EINTR) {
      bytes.resize(used);
      continue;
    }
    if (got < 0) return system_error(path, "cannot read", errno);
    bytes.resize(used + static_cast<std::size_t>(got));
    if (got == 0) return bytes;
    if (bytes.size() > max_bytes) {
      return absl::InvalidArgumentError(
          str_cat(path.string(), ": is larger than the ", max_bytes, " bytes allowed"));
    }
  }
}

absl::Status write_file_atomically(const std::filesystem::path& path,
                                   std::span<const std::string_view> pieces) {
  // Unique among the threads and processes of this machine; a leftover of a killed process with the
  // same number makes O_EXCL fail, so that one is removed first.
  static std::atomic<std::uint64_t> next_number{0};
  std::filesystem::path temporary = path;
  temporary += str_cat(".tmp-", ::getpid(), "-", next_number.fetch_add(1));
  ::unlink(temporary.c_str());

  absl::Status status = write_synced(temporary, path, pieces);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = system_error(path, "cannot put the new file in its place", errno);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const File directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.is_open() || ::fsync(directory.fd()) != 0) {
    return system_error(path, "the file is written, but its folder could not be synced", errno);
  }
  return absl::OkStatus();
}

}  // namespace poseidon
