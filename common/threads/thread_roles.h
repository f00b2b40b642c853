#pragma once

// "On the loop" and "on the trainer's thread" as capabilities that Clang checks
// (-Wthread-safety), as it checks mutexes.
//
// Called by: classes of which some members belong to one thread. Calls: nothing.
//
// A role locks nothing and costs one load where it is asserted. Members that belong to a thread are
// ABSL_GUARDED_BY(role_), functions that run on it ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_). Clang
// checks everything in between. Clang cannot check calls from another class (a handler of a stream,
// a posted lambda). Such a function begins with role_.assert_held(), which checks the thread in
// every build, because sanitizers find a wrong thread only sometimes.
//
// Constructors and destructors are not checked: no other thread has the object then.

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/check.h"

namespace poseidon {

/// Work of one thread at a time, from a ScopedThreadRole to its end: a thread that the class
/// starts, or a task that another class runs for it.
class ABSL_LOCKABLE ThreadRole {
 public:
  ThreadRole() = default;
  ThreadRole(const ThreadRole&) = delete;
  ThreadRole& operator=(const ThreadRole&) = delete;

  /// Aborts unless this thread has the role.
  void assert_held() const ABSL_ASSERT_EXCLUSIVE_LOCK() {
    POSEIDON_CHECK(holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(),
                   "a function is called by the thread that has its role");
  }

 private:
  friend class ScopedThreadRole;
  void enter() {
    // A role is no lock and never waits: two threads in it at the same time are the bug that it
    // detects.
    std::thread::id nobody;
    POSEIDON_CHECK(holder_.compare_exchange_strong(nobody, std::this_thread::get_id()),
                   "one thread has a role at a time, and takes it once");
  }
  void leave() { holder_.store(std::thread::id()); }

  std::atomic<std::thread::id> holder_{};
};

/// This thread has the role from here to the end of the block. Aborts if one has it already.
class ABSL_SCOPED_LOCKABLE ScopedThreadRole {
 public:
  explicit ScopedThreadRole(ThreadRole& role) ABSL_EXCLUSIVE_LOCK_FUNCTION(role) : role_(role) {
    role_.enter();
  }
  ~ScopedThreadRole() ABSL_UNLOCK_FUNCTION() { role_.leave(); }
  ScopedThreadRole(const ScopedThreadRole&) = delete;
  ScopedThreadRole& operator=(const ScopedThreadRole&) = delete;

 private:
  ThreadRole& role_;
};

/// The thread of a loop that the class does not run itself, but is called by. The first that
/// asserts it is that thread, for as long as the object lives.
class ABSL_LOCKABLE LoopRole {
 public:
  LoopRole() = default;
  LoopRole(const LoopRole&) = delete;
  LoopRole& operator=(const LoopRole&) = delete;

  /// Aborts when another thread was here before.
  void assert_held() const ABSL_ASSERT_EXCLUSIVE_LOCK() {
    const std::thread::id self = std::this_thread::get_id();
    std::thread::id holder = holder_.load(std::memory_order_relaxed);
    if (holder == std::thread::id() && holder_.compare_exchange_strong(holder, self)) return;
    POSEIDON_CHECK(holder == self, "what belongs to a loop is touched on its thread");
  }

 private:
  mutable std::atomic<std::thread::id> holder_{};
};

}  // namespace poseidon
