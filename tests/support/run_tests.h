#pragma once

#include <cstdlib>

#include "gtest/gtest.h"

namespace poseidon::testing_support {

/// RUN_ALL_TESTS that does not take skipped for passed: when nothing failed and a test was skipped,
/// the exit status is what POSEIDON_SKIPPED_EXIT says (poseidon_test of cmake/PoseidonBuild.cmake),
/// by which ctest knows. By hand, without it, GoogleTest's own.
inline int run_tests() {
  const int failed = RUN_ALL_TESTS();
  const char* const skipped = std::getenv("POSEIDON_SKIPPED_EXIT");
  if (failed != 0 || skipped == nullptr) return failed;
  return ::testing::UnitTest::GetInstance()->skipped_test_count() > 0 ? std::atoi(skipped) : 0;
}

}  // namespace poseidon::testing_support
