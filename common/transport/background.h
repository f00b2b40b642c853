#pragma once

// The seam to blocking work: tasks run one after the other, somewhere else. The real one has a
// thread; in simulations they run on the loop.
//
// Called by: server/store/checkpoint_keeper.h, coordinator/cluster/cluster.h and
// common/grpc/grpc_transport.cc, for work that would block their own thread. Calls: the tasks,
// which use the disk or a connection and report their results themselves.

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "common/threads/mutex.h"
#include "common/transport/transport.h"

namespace poseidon {

class Background {
 public:
  virtual ~Background() = default;
  /// Any thread. Tasks run in the order of the calls, one at a time. The caller bounds the number
  /// of waiting tasks.
  virtual void enqueue(std::function<void()> task) = 0;
};

/// Destroying it drops the tasks that have not begun, and waits for the one that has.
class BackgroundThread final : public Background {
 public:
  BackgroundThread() : thread_([this] { run(); }) {}
  ~BackgroundThread() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  void enqueue(std::function<void()> task) override {
    const MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  void run() {
    while (true) {
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        // No deadline, on purpose: this thread only waits for work or for its end.
        changed_.wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || !tasks_.empty();
        });
        if (stopping_) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< last: it uses all above
};

/// The twin for simulations: tasks run on a loop, after a delay.
class BackgroundOnLoop final : public Background {
 public:
  /// `loop` outlives it.
  BackgroundOnLoop(Loop* loop, Nanoseconds delay) : loop_(loop), delay_(delay) {}
  void enqueue(std::function<void()> task) override { loop_->post_after(delay_, std::move(task)); }

 private:
  Loop* const loop_;
  const Nanoseconds delay_;
};

}  // namespace poseidon
