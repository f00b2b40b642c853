#pragma once

// The project's mutex: std::mutex with annotations that Clang checks (-Wthread-safety).
//
// Called by: every class with state that several threads use. Calls: std::mutex,
// std::condition_variable.
//
// ABSL_GUARDED_BY names the mutex that guards a member; ABSL_EXCLUSIVE_LOCKS_REQUIRED names the
// mutex that the caller of a function must hold. Clang then refuses to compile an access without
// the lock. GCC ignores the annotations. This class exists because libstdc++ does not annotate
// std::mutex; it adds nothing else.
//
// Clang checks a lambda as a separate function, without the locks of the function that contains it.
// So a lambda that reads guarded members, such as the condition of a wait, needs its own
// annotation: changed_.wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return
// is_over_; });

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

  /// Waits until it is notified; may also return without a reason.
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
  /// Waits until it is notified or the time is over; may also return without a reason.
  template <typename Time>
  void wait_for(Mutex& mutex, const Time& time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held(mutex);
    changed_.wait_for(held.lock, time);
  }

 private:
  /// A mutex that the caller holds and keeps, in the form that std::condition_variable needs.
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
