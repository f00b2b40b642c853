#include "common/base/process_load.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include "common/base/random.h"

namespace poseidon {
namespace {

/// More CPUs than any kernel supports.
constexpr int kMostCores = 1 << 20;

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

/// Second field of schedstat: nanoseconds on a run queue.
double waited_seconds() {
  std::uint64_t waited_ns = 0;
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(thread.path() / "schedstat");
    std::uint64_t ran = 0;
    std::uint64_t waited = 0;
    if (file >> ran >> waited) waited_ns += waited;  // otherwise the thread has just ended
  }
  return static_cast<double>(waited_ns) * 1e-9;
}

}  // namespace

std::uint32_t allowed_cores(AffinityCall affinity) {
  // The kernel refuses a set that is too small for the machine (EINVAL), without telling the
  // necessary size.
  for (int cores = CPU_SETSIZE; cores <= kMostCores; cores *= 2) {
    const std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(static_cast<std::size_t>(cores)));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cores));
    if (set == nullptr) return 0;
    if (affinity(bytes, set.get()) == 0) {
      return static_cast<std::uint32_t>(CPU_COUNT_S(bytes, set.get()));
    }
    if (errno != EINVAL) return 0;
  }
  return 0;
}

namespace {
std::uint32_t cores_of_this_process() {
  return allowed_cores(
      [](std::size_t bytes, cpu_set_t* set) { return ::sched_getaffinity(0, bytes, set); });
}
}  // namespace

int usable_cores() { return std::max(1, static_cast<int>(cores_of_this_process())); }

std::uint64_t installed_memory_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

double process_cpu_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0.0;
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

ProcessLoad process_load() {
  ProcessLoad load;
  std::string boot_id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (file >> boot_id) load.machine = fnv1a_64(boot_id);
  load.cores = cores_of_this_process();
  load.cpu_seconds = process_cpu_seconds();
  load.cpu_wait_seconds = waited_seconds();
  return load;
}

}  // namespace poseidon
