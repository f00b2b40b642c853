#pragma once

// Runs work on the calling thread and helper threads until it is done.
//
// Called by: worker/data/formats/pack.h. Calls: nothing.

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace poseidon {

/// Runs work(0) here and work(1), ..., work(threads - 1) on other threads, and waits for all.
/// `work` must take its items from a shared pool, so that all are done even when the system refuses
/// some threads (a limit on tasks). Each number is called at most once, 0 always. `work` must not
/// throw.
template <typename Work>
void work_with_helpers(std::size_t threads, const Work& work) {
  std::vector<std::jthread> helpers;
  helpers.reserve(threads);
  try {
    for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back([&work, i] { work(i); });
  } catch (const std::system_error&) {  // the started threads do the work
  }
  work(std::size_t{0});
}

}  // namespace poseidon
