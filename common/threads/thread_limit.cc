#include "common/threads/thread_limit.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"

namespace poseidon {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;

std::string limit_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "the user's processes are not limited by ulimit -u, so a container's or a unit's limit "
           "must be: raise that (docker --pids-limit, TasksMax=)";
  }
  return absl::StrCat(
      "the user may have ", limit.rlim_cur,
      " processes and threads (ulimit -u): raise that, or a container's or a unit's "
      "limit (docker --pids-limit, TasksMax=)");
}

/// Threads that wait until there are all of them.
struct Gate {
  Mutex mutex;
  CondVar opened;
  bool is_open ABSL_GUARDED_BY(mutex) = false;
};

void* wait_at(void* gate) {
  auto& at = *static_cast<Gate*>(gate);
  MutexLock lock(at.mutex);
  at.opened.wait(at.mutex, [&at]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(at.mutex) { return at.is_open; });
  return nullptr;
}

const char* program_name = "poseidon";

[[noreturn]] void end_with_a_line() {
  const char* what = "an unknown exception";
  std::string text;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    text = error.what();
    what = text.c_str();
  } catch (...) {  // what it is cannot be told
  }
  std::fprintf(stderr, "%s: cannot go on: %s. If a thread could not be started: %s\n", program_name,
               what, limit_text().c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

}  // namespace

absl::Status check_threads(std::size_t count, const std::string& who) {
  Gate gate;
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes,
                              std::max(kStackBytes, static_cast<std::size_t>(PTHREAD_STACK_MIN)));
  std::vector<pthread_t> threads;
  int error = 0;
  while (threads.size() < count) {
    pthread_t thread{};
    error = ::pthread_create(&thread, &attributes, wait_at, &gate);
    if (error != 0) break;
    threads.push_back(thread);
  }
  ::pthread_attr_destroy(&attributes);
  {
    const MutexLock lock(gate.mutex);
    gate.is_open = true;
    gate.opened.notify_all();
  }
  for (const pthread_t thread : threads) ::pthread_join(thread, nullptr);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(who, " needs up to ", count, " threads, and the system allows ", threads.size(),
                   " more (", std::strerror(error), "): ", limit_text()));
}

void end_at_uncaught_exceptions(const char* program) {
  program_name = program;
  std::set_terminate(end_with_a_line);
}

}  // namespace poseidon
