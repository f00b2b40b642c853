#include "common/threads/thread_team.h"

#include <algorithm>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/base/check.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kMostDefaultThreads = 8;

/// Tells the core that this is a loop that waits.
void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

int default_team_threads(int cores) { return std::clamp(cores / 2, 1, kMostDefaultThreads); }

ThreadTeam::ThreadTeam(int threads) {
  POSEIDON_CHECK(threads >= 1 && threads <= kMaxTeamThreads, "a number of threads");
  try {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
  } catch (const std::system_error& error) {
    // A limit on threads is not fatal: the team works with those that it could start.
    spdlog::warn("{} of {} threads for sums and steps: {}", helpers_.size() + 1, threads,
                 error.what());
  }
}

ThreadTeam::~ThreadTeam() {
  gate_.fetch_or(kStop);
  gate_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::for_ranges(std::size_t elements, Body body) {
  POSEIDON_CHECK(!is_called_.exchange(true, std::memory_order_acquire),
                 "one call at a time, and none by a body");
  if (helpers_.empty() || elements < kFewestElements) {
    sequential_team()->for_ranges(elements, body);
  } else {
    elements_ = elements;
    body_ = &body;
    next_.store(0, std::memory_order_relaxed);
    // Read-modify-write, which no later read overtakes: notify_all reads the number of sleepers.
    gate_.fetch_or(kOpen);
    gate_.notify_all();
    take_ranges();
    await_helpers();
  }
  is_called_.store(false, std::memory_order_release);
}

/// A helper's life.
void ThreadTeam::help() {
  while (true) {
    std::uint32_t seen = await_work();
    if ((seen & kStop) != 0) return;
    // Through the gate, if it is as it was.
    if (!gate_.compare_exchange_weak(seen, seen + kOneInside, std::memory_order_acquire)) continue;
    take_ranges();
    gate_.fetch_sub(kOneInside, std::memory_order_release);
  }
}

/// The gate as it was when it was open, or the end had come.
std::uint32_t ThreadTeam::await_work() {
  const SteadyClock::time_point awake_until = SteadyClock::now() + kSpin;
  while (true) {
    const std::uint32_t seen = gate_.load(std::memory_order_relaxed);
    if ((seen & (kOpen | kStop)) != 0) return seen;
    if (SteadyClock::now() < awake_until) {
      relax();
    } else {
      // Without a deadline on purpose: a helper's whole life is to wait for work or its end.
      gate_.wait(seen, std::memory_order_relaxed);
    }
  }
}

/// Until there are none. Who finds that out shuts the gate: it is too late to come in.
void ThreadTeam::take_ranges() {
  while (true) {
    const std::size_t first = next_.fetch_add(kRangeElements, std::memory_order_relaxed);
    if (first >= elements_) break;
    (*body_)(first, std::min(kRangeElements, elements_ - first));
  }
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
}

/// At most as long as a range takes, unless a helper has lost its core: then it may want ours.
void ThreadTeam::await_helpers() {
  const SteadyClock::time_point spin_until = SteadyClock::now() + kSpin;
  while (gate_.load(std::memory_order_acquire) != 0) {
    if (SteadyClock::now() < spin_until) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace poseidon
