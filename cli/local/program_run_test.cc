#include "cli/local/program_run.h"

#include "gtest/gtest.h"

namespace poseidon::program_run_test {
namespace {

TEST(ProgramName, IsTheScriptsOrTheProgramsFile) {
  EXPECT_EQ(program_name({"python", "-u", "scripts/train.py", "--data", "x.py"}), "train.py");
  EXPECT_EQ(program_name({"/usr/bin/trainer", "--fast"}), "trainer");
}

}  // namespace
}  // namespace poseidon::program_run_test
