#include "common/memory/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"

namespace poseidon {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::array<char, 16> kMagic = {"poseidon arena1"};
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// The arena's first page.
struct Header {
  std::array<char, 16> magic;
  std::uint64_t nonce_low, nonce_high;
};

absl::Status cannot(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

/// Of the boot id and the network namespace (NodeLoad's machine uses the boot id alone: processes
/// that share no ports share no memory either); 0 when the kernel does not provide them.
std::uint64_t machine_hash() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  struct stat network {};
  if (!std::getline(file, id) || ::stat("/proc/self/ns/net", &network) != 0) return 0;
  absl::StrAppend(&id, " ", network.st_ino);
  return fnv1a_64(id);
}

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (std::max<std::uint64_t>(bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
}

/// MAP_FAILED as mmap. Left out of core dumps: writing one reads all pages, and reading a page
/// allocates it, so a crash would fill the machine's memory with unused pages.
void* map_shared(const Descriptor& file, std::uint64_t bytes, int protection) {
  void* const memory =
      ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (memory != MAP_FAILED) (void)::madvise(memory, bytes, MADV_DONTDUMP);
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedArena>> SharedArena::create(std::uint64_t capacity_bytes) {
  Descriptor file(::memfd_create("poseidon-tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) return cannot("memfd_create");
  ArenaAddress address;
  address.machine = machine_hash();
  if (address.machine == 0) {
    return absl::FailedPreconditionError(
        "the kernel tells no boot id or network namespace under /proc");
  }
  address.process_id = static_cast<std::uint32_t>(::getpid());
  address.file_descriptor = static_cast<std::uint32_t>(file.get());
  address.bytes = whole_pages(capacity_bytes) + kPageBytes;
  if (::ftruncate(file.get(), static_cast<off_t>(address.bytes)) != 0) return cannot("ftruncate");
  void* memory = map_shared(file, address.bytes, PROT_READ | PROT_WRITE);
  if (memory == MAP_FAILED) return cannot("mmap");
  // From here on the destructor unmaps.
  Header header{.magic = kMagic, .nonce_low = 0, .nonce_high = 0};
  std::array<std::uint64_t, 2> nonce{};
  const bool random = ::getrandom(nonce.data(), sizeof(nonce), 0) == sizeof(nonce);
  header.nonce_low = address.nonce_low = nonce[0];
  header.nonce_high = address.nonce_high = nonce[1];
  std::memcpy(memory, &header, sizeof(header));
  const bool sealed = ::fcntl(file.get(), F_ADD_SEALS, kSeals) == 0;
  std::unique_ptr<SharedArena> arena(
      new SharedArena(std::move(file), static_cast<std::byte*>(memory), address));
  if (!random) return cannot("getrandom");
  if (!sealed) return cannot("sealing shared memory");
  return arena;
}

SharedArena::SharedArena(Descriptor file, std::byte* memory, const ArenaAddress& address)
    : file_(std::move(file)), memory_(memory), address_(address) {
  free_.emplace(kPageBytes, address_.bytes - kPageBytes);
}

SharedArena::~SharedArena() { ::munmap(memory_, address_.bytes); }

void* SharedArena::allocate(std::size_t bytes) {
  const std::uint64_t size = whole_pages(bytes);
  const MutexLock lock(mutex_);
  const auto hole =
      std::find_if(free_.begin(), free_.end(), [size](const auto& f) { return f.second >= size; });
  if (hole == free_.end()) return nullptr;
  const auto [offset, available] = *hole;
  free_.erase(hole);
  if (available > size) free_.emplace(offset + size, available - size);
  taken_.emplace(offset, size);
  return memory_ + offset;
}

void SharedArena::free(void* memory) {
  POSEIDON_CHECK(contains(memory), "memory of this arena");
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(memory) - memory_);
  const MutexLock lock(mutex_);
  if (keeps_freed_) {
    freed_.push_back(offset);
  } else {
    give_back(offset);
  }
}

void SharedArena::keep_freed() {
  const MutexLock lock(mutex_);
  keeps_freed_ = true;
}

void SharedArena::reclaim() {
  const MutexLock lock(mutex_);
  keeps_freed_ = false;
  for (const std::uint64_t offset : std::exchange(freed_, {})) give_back(offset);
}

void SharedArena::give_back(std::uint64_t offset) {
  const auto taken = taken_.find(offset);
  POSEIDON_CHECK(taken != taken_.end(), "memory that allocate returned");
  std::uint64_t size = taken->second;
  taken_.erase(taken);
  // Gives the pages back, and the next owner finds zeros.
  POSEIDON_CHECK(::madvise(memory_ + offset, size, MADV_REMOVE) == 0, "shared memory has pages");
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

bool SharedArena::contains(const void* memory) const {
  const auto* at = static_cast<const std::byte*>(memory);
  return at >= memory_ && at < memory_ + address_.bytes;
}

std::optional<std::uint64_t> SharedArena::offset_of(absl::Span<const std::byte> bytes) const {
  if (bytes.empty() || !contains(bytes.data())) return std::nullopt;
  const auto offset = static_cast<std::uint64_t>(bytes.data() - memory_);
  if (bytes.size() > address_.bytes - offset) return std::nullopt;
  return offset;
}

std::uint64_t SharedArena::allocated_bytes() const {
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [offset, size] : taken_) bytes += size;
  return bytes;
}

absl::StatusOr<std::shared_ptr<const SharedArenaView>> SharedArenaView::open(
    const ArenaAddress& address) {
  if (address.machine == 0 || address.machine != machine_hash()) {
    return absl::FailedPreconditionError("the peer is on another machine");
  }
  const std::string path =
      absl::StrCat("/proc/", address.process_id, "/fd/", address.file_descriptor);
  // The address comes from a peer and may name any file of ours: nothing is read, written or waited
  // for before it has shown itself as sealed memory.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.is_open()) return cannot(path);
  struct stat status {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != address.bytes || address.bytes < kPageBytes) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not the peer's memory"));
  }
  void* memory = map_shared(file, address.bytes, PROT_READ);
  if (memory == MAP_FAILED) return cannot("mmap");
  std::shared_ptr<const SharedArenaView> view(
      new SharedArenaView(static_cast<const std::byte*>(memory), address.bytes));
  Header header{};
  std::memcpy(&header, memory, sizeof(header));
  if (header.magic != kMagic || header.nonce_low != address.nonce_low ||
      header.nonce_high != address.nonce_high) {
    return absl::FailedPreconditionError(absl::StrCat(path, " belongs to another process"));
  }
  return view;
}

SharedArenaView::~SharedArenaView() { ::munmap(const_cast<std::byte*>(memory_), bytes_); }

std::optional<absl::Span<const std::byte>> SharedArenaView::range(std::uint64_t offset,
                                                                  std::uint64_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) return std::nullopt;
  return absl::Span<const std::byte>(memory_ + offset, bytes);
}

}  // namespace poseidon
