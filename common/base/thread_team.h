#pragma once

// A team with threads of its own (common/base/team.h): fork and join within one call.
//
// Before: a server's or worker's main() makes one; its loop thread calls it for each message.
// After: nothing; the helpers touch memory, and decide, receive and send nothing.
//
// Concurrency
//  1. The caller works too. Ranges are taken, not given out: a helper that comes late, because it
//     slept or because its core is busy, finds less to do or nothing, and nobody waits for it. The
//     caller waits for ranges that others have begun, at most one per helper, however long those
//     take that lose their core meanwhile.
//  2. Helpers enter through a gate, which is shut before the call returns: none sees a loop that is
//     over, or half of the next one.
//  3. A helper without work spins for kSpin, so that what comes right behind finds it awake, and
//     then sleeps: an idle process costs no CPU.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/base/team.h"

namespace poseidon {

inline constexpr int kMaxTeamThreads = 64;

/// For a process that may use so many cores and shares them with others: half of them, at most 8,
/// as more would wait for memory. At least 1.
int default_team_threads(int cores);

class ThreadTeam final : public Team {
 public:
  /// Less is done by the caller alone: it would be done before a helper had woken up.
  static constexpr std::size_t kFewestElements = 4 * kRangeElements;
  static constexpr std::chrono::microseconds kSpin{30};

  /// `threads`: 1 to kMaxTeamThreads, the caller's included. Fewer, with a warning, where the
  /// system gives no more.
  explicit ThreadTeam(int threads);
  /// Not during a call.
  ~ThreadTeam() override;

  /// Any thread, one at a time (checked).
  void for_ranges(std::size_t elements, Body body) override;

 private:
  /// Of gate_: how many helpers are inside, and two flags.
  static constexpr std::uint32_t kOneInside = 1;
  static constexpr std::uint32_t kOpen = 1u << 30;
  static constexpr std::uint32_t kStop = 1u << 31;

  void help();
  std::uint32_t await_work();
  void take_ranges();
  void await_helpers();

  /// Elements of the loop and what to do with them: written while the gate is shut and nobody
  /// inside.
  std::size_t elements_ = 0;
  const Body* body_ = nullptr;
  std::atomic<bool> is_called_{false};
  // Words that all threads write, each in a cache line of its own.
  alignas(64) std::atomic<std::size_t> next_{0};  ///< first element that nobody has taken
  alignas(64) std::atomic<std::uint32_t> gate_{0};
  alignas(64) std::vector<std::thread> helpers_;  ///< last: they use all above
};

}  // namespace poseidon
