#pragma once

// Runs work on the calling thread and helper threads, until all of it is done.

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace poseidon {

/// work(0) here and work(1), ..., work(threads - 1) on threads of their own, until all have come
/// back. `work` takes what is left to do from what all share, so that nothing is left undone where
/// the system gives fewer threads, as a limit on tasks makes it; each number is called at most
/// once, 0 always. It throws nothing.
template <typename Work>
void work_with_helpers(std::size_t threads, const Work& work) {
  std::vector<std::jthread> helpers;
  helpers.reserve(threads);
  try {
    for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back([&work, i] { work(i); });
  } catch (const std::system_error&) {  // those that there are do it
  }
  work(std::size_t{0});
}

}  // namespace poseidon
