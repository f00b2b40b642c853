#include "cli/local/child_process.h"

#include <signal.h>

#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/eventually.h"

namespace poseidon::child_process_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::eventually;

class ChildProcessTest : public ::testing::Test {
 protected:
  ChildProcess shell(const std::string& name, const std::string& script) {
    auto child = ChildProcess::start(
        {.name = name, .program = "/bin/sh", .arguments = {"-c", script}, .log = log(name)});
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }

  std::filesystem::path log(const std::string& name) const {
    return std::filesystem::path(::testing::TempDir()) / (name + ".log");
  }

  static std::optional<int> wait(ChildProcess& child) {
    eventually([&] { return child.poll().has_value(); });
    return child.poll();
  }

  bool wait_for_log(const ChildProcess& child, const std::string& text) const {
    return eventually([&] { return last_lines(child.log(), 100).find(text) != std::string::npos; });
  }
};

TEST_F(ChildProcessTest, LogsBothOutputsAndTellsTheExitStatus) {
  ChildProcess child = shell("both", "echo out; echo err >&2; exit 3");
  const auto status = wait(child);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(describe_wait_status(*status), "exit status 3");
  EXPECT_EQ(last_lines(child.log(), 10), "out\nerr");
}

TEST_F(ChildProcessTest, TellsTheSignal) {
  ChildProcess child = shell("signal", "kill -9 $$");
  const auto status = wait(child);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(describe_wait_status(*status), "signal 9 (Killed)");
}

TEST_F(ChildProcessTest, AMissingProgramIsNamed) {
  const auto child = ChildProcess::start(
      {.name = "ghost", .program = "/nowhere/ghost", .arguments = {}, .log = log("ghost")});
  ASSERT_FALSE(child.ok());
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("/nowhere/ghost"));
}

TEST_F(ChildProcessTest, StopsTheWillingAndKillsTheStubborn) {
  std::vector<ChildProcess> children;
  children.push_back(shell("willing", "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"));
  children.push_back(shell("stubborn", "trap '' TERM; echo up; while :; do sleep 0.01; done"));
  for (const ChildProcess& child : children) ASSERT_TRUE(wait_for_log(child, "up"));
  EXPECT_THAT(stop_all(children, Milliseconds(500)), ElementsAre("stubborn"));
  EXPECT_EQ(describe_wait_status(*wait(children[0])), "exit status 0");
  EXPECT_EQ(describe_wait_status(*wait(children[1])), "signal 9 (Killed)");
}

TEST_F(ChildProcessTest, AFrozenChildIsWokenToStop) {
  std::vector<ChildProcess> children;
  children.push_back(shell("frozen", "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"));
  ASSERT_TRUE(wait_for_log(children[0], "up"));
  ASSERT_EQ(::kill(children[0].pid(), SIGSTOP), 0);
  EXPECT_THAT(stop_all(children, Milliseconds(5000)), IsEmpty());
}

TEST_F(ChildProcessTest, TheDestructorLeavesNothingBehind) {
  pid_t pid = -1;
  {
    const ChildProcess child = shell("short", "trap '' TERM; while :; do sleep 0.01; done");
    pid = child.pid();
  }
  EXPECT_NE(::kill(pid, 0), 0);
}

TEST(LastLinesTest, ReadsOnlyTheEnd) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "lines.txt";
  std::ofstream(path) << "one\ntwo\nthree\n";
  EXPECT_EQ(last_lines(path, 1), "three");
  EXPECT_EQ(last_lines(path, 2), "two\nthree");
  EXPECT_EQ(last_lines(path, 9), "one\ntwo\nthree");
  std::ofstream(path, std::ios::trunc) << "";
  EXPECT_EQ(last_lines(path, 3), "");
  EXPECT_EQ(last_lines(path / "absent", 3), "");
}

}  // namespace
}  // namespace poseidon::child_process_test
