// The main() of tests without one of their own.

#include "gmock/gmock.h"
#include "tests/support/own_folder.h"
#include "tests/support/run_tests.h"

int main(int argc, char** argv) {
  const poseidon::testing_support::OwnFolder folder;
  ::testing::InitGoogleMock(&argc, argv);
  return poseidon::testing_support::run_tests();
}
