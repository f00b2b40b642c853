#pragma once

// Reads and writes whole files, with bounds and with errors that name the path.
//
// Called by: the readers of jobs, safetensors and small data sets, whose decoding is pure; writers
// of records and models. Calls: the file system.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace poseidon {

/// `path` from `folder` on, without ".", ".." and doubled separators: other machines may lack the
/// folders that it passes through. Where ".." follows a symbolic link, the file system resolves it,
/// not the text.
std::filesystem::path path_from(const std::filesystem::path& folder,
                                const std::filesystem::path& path);

/// `path_from` in place; leaves "" unchanged.
void resolve_path(std::string& path, const std::filesystem::path& folder);

/// Creates the folder `path` and its parents; it may exist. Errors as folder_error().
absl::Status create_folder(const std::filesystem::path& path);

/// The error for a folder from the user that cannot be used: INVALID_ARGUMENT where naming another
/// folder helps (no permission, a file in its place), otherwise the system's error (a full disk).
/// Starts with the path.
absl::Status folder_error(const std::filesystem::path& path, std::string_view what, int error);

/// Locks a file, creating it if needed, until the descriptor is closed or the process ends.
/// ALREADY_EXISTS when another process has locked it; errors start with the path.
absl::StatusOr<Descriptor> lock_file(const std::filesystem::path& path);

/// The bytes of a file. Errors start with the path: NOT_FOUND when it is missing, INVALID_ARGUMENT
/// when it is not a regular file or larger than `max_bytes`, otherwise the system's error.
absl::StatusOr<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// The same into `bytes`, reusing its memory.
absl::Status read_file(const std::filesystem::path& path, std::uint64_t max_bytes,
                       std::vector<std::uint8_t>& bytes);

/// Exactly `size` bytes from `offset` on of an open file, into `out`; any thread. Errors start with
/// `path`; DATA_LOSS when the file ends before.
absl::Status read_exactly_at(int fd, const std::filesystem::path& path, std::uint64_t offset,
                             std::uint8_t* out, std::size_t size);

/// Opens a regular file for reading. Errors as read_file.
absl::StatusOr<Descriptor> open_file(const std::filesystem::path& path);

/// Makes the creation or removal of `path` survive a power failure.
absl::Status sync_folder_of(const std::filesystem::path& path);

/// Removes a file so that it does not come back after a power failure. Idempotent.
absl::Status remove_durably(const std::filesystem::path& path);

/// The system's error (`error` is errno): "PATH: WHAT: No space left on device". NOT_FOUND,
/// PERMISSION_DENIED, ALREADY_EXISTS, RESOURCE_EXHAUSTED (a full disk), otherwise INTERNAL.
absl::Status system_error(const std::filesystem::path& path, std::string_view what, int error);

/// Renames `from` to `to` unless `to` exists: 0, or -1 and errno (EEXIST when it exists).
using ExclusiveRename = int (*)(const char* from, const char* to);
int exclusive_rename(const char* from, const char* to);

/// Renames the folder `from` to `to` within its parent; ALREADY_EXISTS when `to` exists. File
/// systems that cannot do this atomically (NFS, CephFS, Lustre, 9p) check first; there, an empty
/// folder that someone creates in between is replaced.
absl::Status rename_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                           ExclusiveRename rename = exclusive_rename);

/// Writes all of `bytes` to an open file, in as many calls as it takes. Errors start with `path`.
absl::Status write_fully(int fd, const std::filesystem::path& path, std::string_view bytes);

/// Replaces a file atomically, from bytes that come in pieces. `path` holds its old content until
/// commit(), and then all of the new bytes, on disk. The bytes go to a temporary file in the same
/// folder, which the destructor removes unless committed. INVALID_ARGUMENT for
/// a folder, a pipe or a device, which would be destroyed. Errors (a full disk too) start with the
/// path. Two of them for one path never share a temporary file. One thread at a time.
class AtomicFile {
 public:
  /// What becomes of a symbolic link at `path`.
  enum class Link : std::uint8_t {
    kFollow,   ///< the file it names is replaced
    kReplace,  ///< the link is: its maker chose the name, and must not choose what is written
  };
  explicit AtomicFile(std::filesystem::path path, Link link = Link::kFollow);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status open();  ///< once, before everything else
  absl::Status append(std::string_view bytes);
  absl::Status commit();  ///< fsync, rename, fsync of the folder; once, then nothing else
  /// Valid from open() on; for code that ends the process without destructors.
  const std::filesystem::path& temporary() const { return temporary_; }

 private:
  std::filesystem::path path_;       ///< from open() on: the target of a link that is followed
  std::filesystem::path temporary_;  ///< likewise
  const Link link_;
  Descriptor file_;
  bool exists_ = false;  ///< whether we created the temporary file
};

/// Removes temporary files that killed processes left for this path. No AtomicFile for it may exist
/// now.
void remove_leftovers(const std::filesystem::path& path);

/// The same for bytes that are all in memory: writes the pieces one after the other.
absl::Status write_file_atomically(const std::filesystem::path& path,
                                   std::span<const std::string_view> pieces,
                                   AtomicFile::Link link = AtomicFile::Link::kFollow);
absl::Status write_file_atomically(const std::filesystem::path& path, std::string_view contents,
                                   AtomicFile::Link link = AtomicFile::Link::kFollow);

}  // namespace poseidon
