#pragma once

// A team with threads of its own (common/threads/team.h): fork and join within one call.
//
// Called by: a server's or worker's main() creates it; the loop thread calls it for each message.
// Calls: nothing. Helpers only compute on memory; they make no decisions and send or receive
// nothing.
//
// Concurrency
//  1. The caller works too. Each thread takes its next range itself, so no thread waits for a
//     helper that wakes late or whose core is busy. The caller waits only for ranges that helpers
//     have begun, at most one per helper. A helper that loses its core delays the caller for that
//     time.
//  2. Helpers enter through a gate that closes before the call returns. No helper sees a finished
//     loop or a half-written next one.
//  3. A helper without work spins for kSpin, so that a loop that follows at once finds it awake.
//     Then it sleeps: an idle process costs no CPU.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/threads/team.h"

namespace poseidon {

inline constexpr int kMaxTeamThreads = 64;

/// Threads for a process that may use `cores` cores and shares them with others: half of them, at
/// least 1, at most 8, because more threads would wait for memory.
int default_team_threads(int cores);

class ThreadTeam final : public Team {
 public:
  /// The caller does smaller loops alone: it finishes before a helper wakes up.
  static constexpr std::size_t kFewestElements = 4 * kRangeElements;
  static constexpr std::chrono::microseconds kSpin{30};

  /// `threads`: 1 to kMaxTeamThreads, the caller's included. Starts fewer, with a warning, when the
  /// system refuses more threads.
  explicit ThreadTeam(int threads);
  /// Not during a call.
  ~ThreadTeam() override;

  /// Any thread, one at a time (checked).
  void for_ranges(std::size_t elements, Body body) override;

 private:
  /// Bits of gate_: the number of helpers inside, and two flags.
  static constexpr std::uint32_t kOneInside = 1;
  static constexpr std::uint32_t kOpen = 1u << 30;
  static constexpr std::uint32_t kStop = 1u << 31;

  void help();
  std::uint32_t await_work();
  void take_ranges();
  void await_helpers();

  /// The loop's size and body; written only while the gate is closed and no helper is inside.
  std::size_t elements_ = 0;
  const Body* body_ = nullptr;
  std::atomic<bool> is_called_{false};
  // All threads write these words; each has its own cache line.
  alignas(64) std::atomic<std::size_t> next_{0};  ///< first element not yet taken
  alignas(64) std::atomic<std::uint32_t> gate_{0};
  alignas(64) std::vector<std::thread> helpers_;  ///< last member: the threads use all above
};

}  // namespace poseidon
