#include "common/threads/thread_roles.h"

#include <gtest/gtest.h>

#include <thread>

namespace poseidon::thread_roles_test {
namespace {

class Worker {
 public:
  void run() {
    const ScopedThreadRole role(thread_role_);
    count();
    called_back();
  }
  /// Called by others, on the thread.
  void called_back() {
    thread_role_.assert_held();
    count();
  }
  void enter_twice() {
    const ScopedThreadRole role(thread_role_);
    run();
  }
  /// With the role held by this thread, another one runs.
  void run_on_two() {
    const ScopedThreadRole role(thread_role_);
    std::thread([this] { run(); }).join();
  }

 private:
  void count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(thread_role_) { ++count_; }
  ThreadRole thread_role_;
  int count_ ABSL_GUARDED_BY(thread_role_) = 0;
};

class Handler {
 public:
  int on_event() {
    loop_.assert_held();
    return ++events_;
  }

 private:
  LoopRole loop_;
  int events_ ABSL_GUARDED_BY(loop_) = 0;
};

TEST(ThreadRole, IsTakenByOneThreadAfterTheOther) {
  Worker worker;
  worker.run();
  std::thread([&worker] { worker.run(); }).join();
  worker.run();
}

TEST(ThreadRoleDeath, ACallByAThreadWithoutTheRoleAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Worker worker;
  EXPECT_DEATH(worker.called_back(), "thread that has its role");
}

TEST(ThreadRoleDeath, TwoThreadsInItAtATimeAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Worker worker;
  EXPECT_DEATH(worker.run_on_two(), "one thread has a role at a time");
  EXPECT_DEATH(worker.enter_twice(), "takes it once");
}

TEST(LoopRole, IsOfTheThreadThatComesFirst) {
  Handler handler;
  std::thread([&handler] {
    EXPECT_EQ(handler.on_event(), 1);
    EXPECT_EQ(handler.on_event(), 2);
  }).join();
}

TEST(LoopRoleDeath, AnotherThreadAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Handler handler;
  handler.on_event();
  EXPECT_DEATH(std::thread([&handler] { handler.on_event(); }).join(), "touched on its thread");
}

}  // namespace
}  // namespace poseidon::thread_roles_test
