// The main() of tests without one of their own.

#include "gmock/gmock.h"
#include "spdlog/spdlog.h"
#include "tests/support/own_folder.h"
#include "tests/support/run_tests.h"

int main(int argc, char** argv) {
  // The logger is made here, by one thread: spdlog's library is not instrumented, so
  // ThreadSanitizer does not see that two threads that log for the first time wait for each other.
  spdlog::default_logger_raw();
  const poseidon::testing_support::OwnFolder folder;
  ::testing::InitGoogleMock(&argc, argv);
  return poseidon::testing_support::run_tests();
}
