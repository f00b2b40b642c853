// Replaces operator new in the programs that link this file: blocks of megabytes begin at a huge
// page, and the kernel is asked for huge pages. RocksDB reads and writes pieces of megabytes by
// direct I/O in its own blocks. In pages of 4 KiB each is a list of hundreds of segments for the
// disk, in huge pages a few, so reading is about twice as fast
// (docs/decisions/0016-checkpoint-store.md). Without huge pages nothing changes.

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

void* allocate(std::size_t bytes) {
  if (bytes < kHugePageBytes) return std::malloc(bytes == 0 ? 1 : bytes);
  void* block = nullptr;
  if (posix_memalign(&block, kHugePageBytes, bytes) != 0) return nullptr;
  // Whole ones only: the rest of the last stays in small pages. That it fails does no harm.
  (void)madvise(block, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  return block;
}

}  // namespace

void* operator new(std::size_t bytes) {
  while (true) {
    if (void* const block = allocate(bytes)) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
