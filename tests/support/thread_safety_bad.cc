// What Clang's -Wthread-safety has to refuse, one mistake per MISTAKE. thread_safety_test.sh
// compiles it, with MISTAKE=0 for the same code without one. No program contains this file.

#include "common/threads/mutex.h"
#include "common/threads/thread_roles.h"

namespace poseidon {

class Account {
 public:
  void add(int amount) {
#if MISTAKE == 1  // a member is changed without its mutex
    amount_ += amount;
#else
    const MutexLock lock(mutex_);
    add_locked(amount);
#endif
#if MISTAKE == 2  // the mutex is taken twice
    const MutexLock again(mutex_);
#endif
  }

  void add_two() {
#if MISTAKE != 3  // a function is called without the mutex that it requires
    const MutexLock lock(mutex_);
#endif
    add_locked(2);
  }

  void wait_for_some() {
    MutexLock lock(mutex_);
#if MISTAKE == 4  // a wait without the mutex
    lock.unlock();
#endif
#if MISTAKE == 5  // a condition that does not say that it runs under the mutex
    changed_.wait(mutex_, [this] { return amount_ > 0; });
#else
    changed_.wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return amount_ > 0; });
#endif
  }

  int get() {
    MutexLock lock(mutex_);
    const int amount = amount_;
    lock.unlock();
#if MISTAKE == 6  // read again after the mutex was given up
    return amount_;
#else
    return amount;
#endif
  }

  void run() {
#if MISTAKE != 7  // a thread without the role runs what requires it
    const ScopedThreadRole role(thread_role_);
#endif
    on_thread();
  }

  void on_event() {
#if MISTAKE != 8  // the loop's member is changed without the loop's role
    loop_.assert_held();
#endif
    ++events_;
  }

 private:
  void add_locked(int amount) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    amount_ += amount;
    changed_.notify_all();
  }
  void on_thread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(thread_role_) { ++turns_; }

  Mutex mutex_;
  CondVar changed_;
  int amount_ ABSL_GUARDED_BY(mutex_) = 0;
  ThreadRole thread_role_;
  int turns_ ABSL_GUARDED_BY(thread_role_) = 0;
  LoopRole loop_;
  int events_ ABSL_GUARDED_BY(loop_) = 0;
};

void use() {
  Account account;
  account.add(1);
  account.add_two();
  account.wait_for_some();
  account.run();
  account.on_event();
  account.get();
}

}  // namespace poseidon
