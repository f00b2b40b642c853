#pragma once

#include <chrono>
#include <thread>

#include "common/base/clock.h"

namespace poseidon::testing_support {

/// Whether `condition` becomes true before `patience` is over: asks again and again, for what
/// another thread or process does without notice. The pause decides nothing.
template <typename Condition>
bool eventually(const Condition& condition, Nanoseconds patience = std::chrono::seconds(60),
                Nanoseconds pause = Milliseconds(2)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace poseidon::testing_support
