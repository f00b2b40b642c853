#include "common/threads/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace poseidon::mutex_test {
namespace {

constexpr std::chrono::seconds kPatience(30);
constexpr std::chrono::milliseconds kMoment(20);

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, OneThreadHasItAtATime) {
  constexpr int kThreads = 4, kTurns = 2000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&counter] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const MutexLock lock(counter.mutex);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, kThreads * kTurns);
}

TEST(MutexLock, GivesItUpInBetweenAndAtTheEndOnce) {
  Counter counter;
  {
    MutexLock lock(counter.mutex);
    counter.value = 1;
    lock.unlock();
    std::thread([&counter] {
      const MutexLock other(counter.mutex);
      counter.value = 2;
    }).join();
    lock.lock();
    EXPECT_EQ(counter.value, 2);
    lock.unlock();
  }
  const MutexLock lock(counter.mutex);  // would block if the scope above still held the mutex
  EXPECT_EQ(counter.value, 2);
}

TEST(CondVar, WaitsForWhatAnotherThreadDoesAndHoldsTheMutexAgain) {
  Counter counter;
  std::thread other([&counter] {
    for (int i = 0; i < 3; ++i) {
      const MutexLock lock(counter.mutex);
      ++counter.value;
      counter.changed.notify_all();
    }
  });
  {
    MutexLock lock(counter.mutex);
    counter.changed.wait(counter.mutex, [&counter]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(counter.mutex) {
      return counter.value == 3;
    });
    EXPECT_EQ(counter.value, 3);
    lock.unlock();  // is held: to unlock it once more would be an error that TSan reports
  }
  other.join();
}

TEST(CondVar, TellsWhetherTheConditionIsMetWhenTheTimeIsOver) {
  Counter counter;
  const MutexLock lock(counter.mutex);
  const auto is_one = [&counter]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(counter.mutex) {
    return counter.value == 1;
  };
  const auto before = std::chrono::steady_clock::now();
  EXPECT_FALSE(counter.changed.wait_for(counter.mutex, kMoment, is_one));
  EXPECT_GE(std::chrono::steady_clock::now() - before, kMoment);
  EXPECT_FALSE(counter.changed.wait_until(counter.mutex, before + 2 * kMoment, is_one));
  EXPECT_GE(std::chrono::steady_clock::now() - before, 2 * kMoment);
  counter.value = 1;
  EXPECT_TRUE(counter.changed.wait_for(counter.mutex, kPatience, is_one));
  EXPECT_TRUE(counter.changed.wait_until(counter.mutex, before, is_one)) << "though it is over";
}

TEST(CondVar, AConditionThatThrowsLeavesTheMutexHeldOnce) {
  Counter counter;
  {
    const MutexLock lock(counter.mutex);
    EXPECT_THROW(
        counter.changed.wait(counter.mutex, []() -> bool { throw std::runtime_error("no"); }),
        std::runtime_error);
    counter.value = 5;
  }
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, 5);
}

}  // namespace
}  // namespace poseidon::mutex_test
