#pragma once

// The project's mutex: std::mutex with annotations that Clang checks (-Wthread-safety).
//
// Called by: every class with state that several threads use. Calls: std::mutex,
// std::condition_variable.
//
// A member says which mutex guards it (ABSL_GUARDED_BY), a function which mutex its caller holds
// (ABSL_EXCLUSIVE_LOCKS_REQUIRED). Clang then refuses to compile an access without the lock. GCC
// ignores the annotations. libstdc++ does not annotate std::mutex, which is why this class is
// there; it adds nothing else to it.
//
// Clang looks into a lambda as into a function of its own, that is without the locks of whoever
// made it. A lambda that reads guarded members, as the condition of a wait does, says so itself:
//   changed_.wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_over_; });

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"

namespace poseidon {

/// Any thread. Not recursive. Prefer MutexLock to lock() and unlock().
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

/// Holds a mutex, which outlives it, from here to the end of the block; with unlock() and lock()
/// not in between. One thread.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {
    if (is_held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  /// It is not held.
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_.lock();
    is_held_ = true;
  }
  /// It is held.
  void unlock() ABSL_UNLOCK_FUNCTION() {
    is_held_ = false;
    mutex_.unlock();
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

/// std::condition_variable for a Mutex. The caller holds `mutex`; a wait gives it up and has it
/// again when it returns. The condition is called with it held.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

  /// Until it is notified, or for no reason at all.
  void wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    changed_.wait(held.lock);
  }
  template <typename Condition>
  void wait(Mutex& mutex, Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    changed_.wait(held.lock, std::move(condition));
  }
  /// Of the two below: whether the condition is met at the end.
  template <typename Time, typename Condition>
  bool wait_for(Mutex& mutex, const Time& time, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    return changed_.wait_for(held.lock, time, std::move(condition));
  }
  template <typename TimePoint, typename Condition>
  bool wait_until(Mutex& mutex, const TimePoint& deadline, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    return changed_.wait_until(held.lock, deadline, std::move(condition));
  }
  /// Until it is notified, the time is over, or for no reason at all.
  template <typename Time>
  void wait_for(Mutex& mutex, const Time& time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    changed_.wait_for(held.lock, time);
  }

 private:
  /// A mutex that its caller holds and goes on to hold, as std::condition_variable wants it.
  struct Held {
    explicit Held(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Held() { lock.release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    std::unique_lock<std::mutex> lock;
  };
  std::condition_variable changed_;
};

}  // namespace poseidon
