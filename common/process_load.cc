#include "common/process_load.h"

#include <sched.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace poseidon {
namespace {

/// FNV-1a: equal in every process.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return value;
}

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
    if (file >> ran >> waited) waited_ns += waited;  // else the thread has just ended
  }
  return static_cast<double>(waited_ns) * 1e-9;
}

}  // namespace

ProcessLoad process_load() {
  ProcessLoad load;
  std::string boot_id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (file >> boot_id) load.machine = hash(boot_id);
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof(cores), &cores) == 0) {
    load.cores = static_cast<std::uint32_t>(CPU_COUNT(&cores));
  }
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    load.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  load.cpu_wait_seconds = waited_seconds();
  return load;
}

}  // namespace poseidon
