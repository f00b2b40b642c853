#pragma once

// Tensor memory that other processes of this machine can read in place.
//
// Called by: common/memory/tensor_memory.h, through which executors and shards allocate what they
// will send, and common/transport/paced_transport.h, which tells peers where in the arena a payload
// is. Calls: the kernel.
//
// The memory is a memfd. It has no name that could be left behind, and the kernel frees it when the
// last process that maps it ends, however it ends. It is sealed, so it cannot shrink under a
// reader, which would crash the reader. Readers map it read only. They open /proc/<pid>/fd/<fd>,
// which the kernel allows to processes of the same user that see the same process ids; all others
// fall back to sockets.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/descriptor.h"
#include "common/threads/mutex.h"

namespace poseidon {

/// Tells other processes where a process's arena is.
struct ArenaAddress {
  /// Hash of the kernel's boot id and the network namespace. A process with a network namespace of
  /// its own counts as a machine of its own, be it a container or a benchmark's host.
  std::uint64_t machine = 0;
  std::uint32_t process_id = 0;
  std::uint32_t file_descriptor = 0;
  std::uint64_t nonce_low = 0, nonce_high = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const ArenaAddress&, const ArenaAddress&) = default;
};

/// This process's arena. Thread-safe.
class SharedArena {
 public:
  /// Reserves address space for `capacity_bytes`; memory is used only for allocations.
  /// FAILED_PRECONDITION, with the reason, when the kernel cannot do it.
  static absl::StatusOr<std::unique_ptr<SharedArena>> create(std::uint64_t capacity_bytes);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// Zeroed memory, aligned to a page; nullptr when no range of that size is free.
  void* allocate(std::size_t bytes);
  /// Frees what allocate returned. The memory goes back to the system at once, and another process
  /// that still reads it finds zeros. So free only memory that no peer reads, except after
  /// keep_freed().
  void free(void* memory);
  /// From now on freed memory keeps its content and is not reused, until reclaim().
  void keep_freed();
  void reclaim();
  bool contains(const void* memory) const;

  /// Offset of `bytes` in the arena; nullopt when it is not wholly inside.
  std::optional<std::uint64_t> offset_of(absl::Span<const std::byte> bytes) const;

  const ArenaAddress& address() const { return address_; }
  std::uint64_t allocated_bytes() const;

 private:
  SharedArena(Descriptor file, std::byte* memory, const ArenaAddress& address);
  void give_back(std::uint64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Descriptor file_;
  std::byte* const memory_;
  const ArenaAddress address_;

  mutable Mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> free_
      ABSL_GUARDED_BY(mutex_);  ///< offset -> bytes, no two adjacent
  std::map<std::uint64_t, std::uint64_t> taken_ ABSL_GUARDED_BY(mutex_);  ///< offset -> bytes
  bool keeps_freed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::uint64_t> freed_
      ABSL_GUARDED_BY(mutex_);  ///< offsets in taken_, to be given back
};

/// Another process's arena, read only. Immutable; any thread.
class SharedArenaView {
 public:
  /// FAILED_PRECONDITION when this process cannot read it: another machine, user or container, or
  /// not what the address says. Opens sealed memory only.
  static absl::StatusOr<std::shared_ptr<const SharedArenaView>> open(const ArenaAddress& address);
  ~SharedArenaView();
  SharedArenaView(const SharedArenaView&) = delete;
  SharedArenaView& operator=(const SharedArenaView&) = delete;

  /// nullopt when the range is not wholly inside.
  std::optional<absl::Span<const std::byte>> range(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  SharedArenaView(const std::byte* memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {}
  const std::byte* const memory_;
  const std::uint64_t bytes_;
};

}  // namespace poseidon
