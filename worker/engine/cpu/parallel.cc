#include "worker/engine/cpu/parallel.h"

#include <algorithm>
#include <atomic>

// libgomp's stable interface. omp.h and -fopenmp are not used: Clang would bring its own runtime,
// and oneDNN would then share the cores with a second thread pool.
extern "C" {
void omp_set_num_threads(int threads);
int omp_get_max_threads();
int omp_get_num_threads();
int omp_get_thread_num();
void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);
}

namespace poseidon {
namespace {

struct Region {
  std::int64_t items;
  internal::RangeFunction function;
  const void* body;
  // libgomp orders the threads of a region before and after it, but ThreadSanitizer does not see
  // that: libgomp is not built for it. These two say the same in its language, at one atomic per
  // thread.
  std::atomic<int> published{0};
  std::atomic<int> finished{0};
};

void run_share(void* data) {
  Region& region = *static_cast<Region*>(data);
  region.published.load(std::memory_order_acquire);
  const std::int64_t threads = omp_get_num_threads();
  const std::int64_t thread = omp_get_thread_num();
  const std::int64_t share = (region.items + threads - 1) / threads;
  const std::int64_t begin = std::min(region.items, share * thread);
  const std::int64_t end = std::min(region.items, begin + share);
  if (begin < end) region.function(region.body, begin, end);
  region.finished.fetch_add(1, std::memory_order_release);
}

}  // namespace

void set_openmp_threads(int threads) { omp_set_num_threads(threads); }

namespace internal {

void run_ranges(std::int64_t items, std::int64_t grain, RangeFunction function, const void* body) {
  const std::int64_t wanted = std::min<std::int64_t>(omp_get_max_threads(), items / grain);
  if (wanted <= 1) {
    if (items > 0) function(body, 0, items);
    return;
  }
  Region region{items, function, body};
  region.published.store(1, std::memory_order_release);
  GOMP_parallel(run_share, &region, static_cast<unsigned>(wanted), 0);
  region.finished.load(std::memory_order_acquire);
}

}  // namespace internal
}  // namespace poseidon
