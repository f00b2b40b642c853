#pragma once

// Whole files in and out, with bounds and with errors that name the path. The only file access of
// the job, safetensors and small-data-set readers, whose decoding is pure.

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

/// `path` from `folder` on, without ".", ".." and doubled separators: other machines may not have
/// the folders that it goes through. Where it leads out of one ("../data") that a link led into,
/// the way out is the system's and not the text's.
std::filesystem::path path_from(const std::filesystem::path& folder,
                                const std::filesystem::path& path);

/// `path_from` in place; a path that is not given ("") stays so.
void resolve_path(std::string& path, const std::filesystem::path& folder);

/// `path` as a folder, with those that it lies in; it may be there already. Errors as
/// folder_error().
absl::Status create_folder(const std::filesystem::path& path);

/// Of a folder that was named to us and cannot be used: INVALID_ARGUMENT where another one could
/// be (no permission, a file in its place), what the system says where not (a full disk). Starts
/// with the path.
absl::Status folder_error(const std::filesystem::path& path, std::string_view what, int error);

/// Creates an empty file where there is none and locks it, until the descriptor is closed or the
/// process ends. ALREADY_EXISTS when another process has locked it; errors start with the path.
absl::StatusOr<Descriptor> lock_file(const std::filesystem::path& path);

/// The bytes of a file. Errors start with the path: NOT_FOUND when it is missing, INVALID_ARGUMENT
/// when it is not a regular file or larger than `max_bytes`, otherwise what the system said.
absl::StatusOr<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// The same into `bytes`, whose memory is used again.
absl::Status read_file(const std::filesystem::path& path, std::uint64_t max_bytes,
                       std::vector<std::uint8_t>& bytes);

/// Exactly `size` bytes from `offset` on of an open file, into `out`; any thread. Errors start with
/// `path`; DATA_LOSS when the file ends before.
absl::Status read_exactly_at(int fd, const std::filesystem::path& path, std::uint64_t offset,
                             std::uint8_t* out, std::size_t size);

/// Opens a regular file for reading. Errors as read_file.
absl::StatusOr<Descriptor> open_file(const std::filesystem::path& path);

/// That a file at `path` is there, or is not there any more, stays so when the power fails.
absl::Status sync_folder_of(const std::filesystem::path& path);

/// Idempotent; a file that is removed does not come back when the power fails.
absl::Status remove_durably(const std::filesystem::path& path);

/// What the system says (`error` is its errno): "PATH: WHAT: No space left on device". NOT_FOUND,
/// PERMISSION_DENIED, ALREADY_EXISTS, RESOURCE_EXHAUSTED (a full disk), otherwise INTERNAL.
absl::Status system_error(const std::filesystem::path& path, std::string_view what, int error);

/// Renames `from` unless there is something called `to`: 0, or -1 and errno (EEXIST when there is).
using ExclusiveRename = int (*)(const char* from, const char* to);
int exclusive_rename(const char* from, const char* to);

/// Gives the folder `from` the name `to`, in the same folder, which it may not have yet:
/// ALREADY_EXISTS. Where the file system cannot promise that in one step (NFS, CephFS, Lustre and
/// 9p), looks before: what somebody makes in between is replaced only if it is an empty folder.
absl::Status rename_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                           ExclusiveRename rename = exclusive_rename);

/// Writes all of `bytes` to an open file, in as many calls as it takes. Errors start with `path`.
absl::Status write_fully(int fd, const std::filesystem::path& path, std::string_view bytes);

/// A new version of a file, for bytes that come in pieces: `path` holds either what it held before
/// or, after commit(), all of the new bytes, on disk. They wait in a temporary file in the same
/// folder, which the destructor removes unless committed. A link is followed; INVALID_ARGUMENT for
/// a folder, a pipe or a device, which would be gone. Errors (a full disk too) start with the path.
/// Two of them for one path never share a temporary file. One thread at a time.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status open();  ///< once, before everything else
  absl::Status append(std::string_view bytes);
  absl::Status commit();  ///< fsync, rename, fsync of the folder; once, then nothing else
  /// From open() on; for who ends the process without destructors.
  const std::filesystem::path& temporary() const { return temporary_; }

 private:
  std::filesystem::path path_;       ///< from open() on: where a link leads
  std::filesystem::path temporary_;  ///< likewise
  Descriptor file_;
  bool exists_ = false;  ///< the temporary file, by our hand
};

/// Removes what killed processes have left of AtomicFiles for this path. Nobody may write one now.
void remove_leftovers(const std::filesystem::path& path);

/// The same for bytes that are all there: the pieces one after the other.
absl::Status write_file_atomically(const std::filesystem::path& path,
                                   std::span<const std::string_view> pieces);
absl::Status write_file_atomically(const std::filesystem::path& path, std::string_view contents);

}  // namespace poseidon
