#include "common/threads/thread_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace poseidon::thread_team_test {
namespace {

constexpr std::size_t kRange = Team::kRangeElements;
constexpr std::size_t kFewest = ThreadTeam::kFewestElements;

/// How often each element was done; fails where a range is not one of the team's.
std::vector<int> times_done(Team& team, std::size_t elements) {
  std::vector<int> times(elements, 0);  // plain words: ThreadSanitizer sees who writes them
  std::atomic<bool> are_ranges{true};
  team.for_ranges(elements, [&](std::size_t first, std::size_t size) {
    const bool is_range = first % kRange == 0 && size == std::min(kRange, elements - first);
    if (!is_range) are_ranges = false;
    for (std::size_t i = first; i < first + size; ++i) ++times[i];
  });
  EXPECT_TRUE(are_ranges);
  return times;
}

TEST(Team, TheTwinDoesEveryElementOnceInAscendingOrder) {
  std::size_t next = 0;
  sequential_team()->for_ranges(3 * kRange + 1, [&](std::size_t first, std::size_t size) {
    EXPECT_EQ(first, next);
    next += size;
  });
  EXPECT_EQ(next, 3 * kRange + 1);
  sequential_team()->for_ranges(0, [&](std::size_t, std::size_t) { FAIL() << "no elements"; });
}

class TeamOf : public ::testing::TestWithParam<int> {};

TEST_P(TeamOf, DoesEveryElementOnce) {
  ThreadTeam team(GetParam());
  for (const std::size_t elements :
       {std::size_t{0}, std::size_t{1}, kRange - 1, kRange, kRange + 1, kFewest - 1, kFewest,
        kFewest + 1, 9 * kRange + 7, 65 * kRange - 3}) {
    EXPECT_EQ(times_done(team, elements), std::vector<int>(elements, 1)) << elements;
  }
}

/// Every call reads what the one before has written, on whichever threads that was.
TEST_P(TeamOf, ManyCallsOneAfterTheOtherSeeEachOthersResults) {
  ThreadTeam team(GetParam());
  constexpr std::size_t kElements = kFewest + 5;
  constexpr int kCalls = 2000;
  std::vector<int> values(kElements, 0);
  for (int call = 0; call < kCalls; ++call) {
    // Each range moves to another place, and so mostly to another thread.
    const std::size_t offset = static_cast<std::size_t>(call) * 1001;
    team.for_ranges(kElements, [&](std::size_t first, std::size_t size) {
      // Few of a range, so that calls are short and helpers come late.
      for (std::size_t i = first; i < first + std::min<std::size_t>(size, 8); ++i) {
        ++values[(i + offset) % kElements];
      }
    });
  }
  long sum = 0;
  for (const int value : values) sum += value;
  EXPECT_EQ(sum, static_cast<long>(kCalls) * (4 * 8 + 5));
}

/// Helpers that sleep are woken up: without them this loop does not end.
TEST_P(TeamOf, WakesItsHelpersUpAfterAPause) {
  ThreadTeam team(GetParam());
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(10 * ThreadTeam::kSpin);  // helpers sleep, or not: both must do
    const auto threads = static_cast<std::size_t>(GetParam());
    std::atomic<std::size_t> arrived{0};
    // As many ranges as threads or a few more; the first of each thread waits for all threads.
    team.for_ranges(std::max(kFewest, threads * kRange), [&](std::size_t, std::size_t) {
      arrived.fetch_add(1);
      while (arrived.load() < threads) std::this_thread::yield();
    });
    EXPECT_GE(arrived.load(), threads);
  }
}

TEST_P(TeamOf, EndsWhetherItHasWorkedOrNot) {
  for (int i = 0; i < 50; ++i) {
    ThreadTeam idle(GetParam());
    ThreadTeam used(GetParam());
    EXPECT_EQ(times_done(used, kFewest), std::vector<int>(kFewest, 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, TeamOf, ::testing::Values(1, 2, 3, 5, 9));

TEST(ThreadTeam, FewElementsStayWithTheCaller) {
  ThreadTeam team(4);
  team.for_ranges(kFewest - 1, [caller = std::this_thread::get_id()](std::size_t, std::size_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

/// Whoever measures on one thread does not disturb another's team.
TEST(ThreadTeam, TeamsAreIndependent) {
  const auto use = [] {
    ThreadTeam team(3);
    for (int i = 0; i < 200; ++i) {
      ASSERT_EQ(times_done(team, kFewest + 1), std::vector<int>(kFewest + 1, 1));
    }
  };
  std::thread other(use);
  use();
  other.join();
}

TEST(ThreadTeam, HalfOfTheCoresAndNotMoreThanEight) {
  EXPECT_EQ(default_team_threads(0), 1) << "unknown";
  EXPECT_EQ(default_team_threads(1), 1);
  EXPECT_EQ(default_team_threads(3), 1);
  EXPECT_EQ(default_team_threads(4), 2);
  EXPECT_EQ(default_team_threads(16), 8);
  EXPECT_EQ(default_team_threads(192), 8);
}

TEST(ThreadTeamDeathTest, ACallWithinACallIsAMistake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const std::size_t elements : {std::size_t{1}, kFewest}) {
    EXPECT_DEATH(
        {
          ThreadTeam team(2);
          team.for_ranges(elements, [&](std::size_t, std::size_t) {
            team.for_ranges(1, [](std::size_t, std::size_t) {});
          });
        },
        "one call at a time");
  }
  EXPECT_DEATH(ThreadTeam(0), "a number of threads");
}

}  // namespace
}  // namespace poseidon::thread_team_test
