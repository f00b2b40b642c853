#include "common/base/process_load.h"

#include <sched.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/eventually.h"

namespace poseidon::process_load_test {
namespace {

using testing_support::eventually;

TEST(ProcessLoad, WhatIsComputedIsCounted) {
  const ProcessLoad before = process_load();
  EXPECT_GE(before.cores, 1U);
  EXPECT_NE(before.machine, 0U);
  // Of this process's own time, however busy the machine is; a limit keeps a broken count from
  // hanging.
  const auto has_computed = [&] { return process_load().cpu_seconds >= before.cpu_seconds + 0.02; };
  EXPECT_TRUE(eventually(has_computed, std::chrono::seconds(20), Nanoseconds{0}));
  EXPECT_GE(process_cpu_seconds(), before.cpu_seconds + 0.02);
  EXPECT_EQ(process_load().machine, before.machine);
}

TEST(ProcessLoad, CoresAreCountedHoweverManyTheMachineHas) {
  // As the kernel of a machine with 4096 CPUs, of which the process may use three.
  EXPECT_EQ(allowed_cores([](std::size_t bytes, cpu_set_t* set) {
              if (bytes < 4096 / 8) {
                errno = EINVAL;
                return -1;
              }
              CPU_ZERO_S(bytes, set);
              for (const std::size_t cpu : {0, 1500, 4095}) CPU_SET_S(cpu, bytes, set);
              return 0;
            }),
            3U);
  static int calls = 0;
  EXPECT_EQ(allowed_cores([](std::size_t, cpu_set_t*) {
              errno = ++calls < 1000 ? EINVAL : EFAULT;
              return -1;
            }),
            0U);
  EXPECT_LT(calls, 30) << "it gives up";
}

TEST(ProcessLoad, TimeWithoutACoreIsCountedOfEveryThread) {
  const ProcessLoad before = process_load();
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(all), &all), 0);
  // Two threads want one core.
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  std::atomic<bool> stop{false};
  const auto spin = [&] {
    ::sched_setaffinity(0, sizeof(one), &one);
    while (!stop) {
    }
  };
  std::thread first(spin);
  std::thread second(spin);
  const auto have_waited = [&] {
    return process_load().cpu_wait_seconds >= before.cpu_wait_seconds + 0.02;
  };
  EXPECT_TRUE(eventually(have_waited, std::chrono::seconds(20), Milliseconds(20)));
  stop = true;
  first.join();
  second.join();
}

}  // namespace
}  // namespace poseidon::process_load_test
