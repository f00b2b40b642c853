#include "common/threads/thread_limit.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::thread_limit_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ThreadLimit, ThreadsThatTheSystemAllowsAreNoError) {
  EXPECT_TRUE(check_threads(0, "a process").ok());
  EXPECT_TRUE(check_threads(30, "a process").ok());
}

/// Runs `body` in a process of an ordinary user who may have no further thread; root has no limit.
/// What it prints to stderr goes to `said`.
int exit_code_without_threads(const std::function<void()>& body, std::string& said) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    const rlimit none{.rlim_cur = 1, .rlim_max = 1};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(100);
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(100);
    body();
    ::_exit(0);
  }
  ::close(pipe[1]);
  char bytes[4096];
  for (ssize_t got = ::read(pipe[0], bytes, sizeof(bytes)); got > 0;
       got = ::read(pipe[0], bytes, sizeof(bytes))) {
    said.append(bytes, static_cast<std::size_t>(got));
  }
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ThreadLimit, ALimitIsNamedWithTheRemedy) {
  std::string said;
  const int code = exit_code_without_threads(
      [] {
        const absl::Status status = check_threads(5, "poseidon-server");
        ::dprintf(STDERR_FILENO, "%s", std::string(status.message()).c_str());
        ::_exit(absl::IsResourceExhausted(status) ? 3 : 0);
      },
      said);
  if (code == 100) GTEST_SKIP() << "no other user can be taken here";
  EXPECT_EQ(code, 3);
  EXPECT_THAT(said,
              AllOf(HasSubstr("poseidon-server needs up to 5 threads"),
                    HasSubstr("the system allows 0 more"), HasSubstr("(ulimit -u): raise that")));
}

TEST(ThreadLimit, AThreadThatCannotBeStartedEndsTheProcessWithALine) {
  std::string said;
  const int code = exit_code_without_threads(
      [] {
        end_at_uncaught_exceptions("poseidon-worker");
        try {
          std::thread([] {}).join();
        } catch (...) {
          std::terminate();  // what happens where nothing catches it; GoogleTest would
        }
      },
      said);
  if (code == 100) GTEST_SKIP() << "no other user can be taken here";
  EXPECT_EQ(code, 1);
  EXPECT_THAT(said, AllOf(HasSubstr("poseidon-worker: cannot go on: Resource temporarily"),
                          HasSubstr("(ulimit -u): raise that")));
}

}  // namespace
}  // namespace poseidon::thread_limit_test
