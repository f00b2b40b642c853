#pragma once

// What a daemon tells the service manager (systemd, by sd_notify) that started it: that it is
// ready, what it does, that it still lives, that it stops. Does nothing where there is none.
//
// Before: main() is ready or stops, and its loop moves a pulse (common/base/loop_pulse.h). After:
// the manager, which restarts a daemon whose pulse stands still.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/loop_pulse.h"

namespace poseidon {

class ServiceManager {
 public:
  /// `pulse` is looked at on a thread of its own, twice per watchdog interval (WatchdogSec of the
  /// unit; never when it has none). When it was silent for half an interval nothing is told; after
  /// a whole one the manager kills and restarts the daemon. It must outlive this.
  explicit ServiceManager(const LoopPulse* pulse);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  /// It listens, and others may be started that need it. `status`: one line for people.
  void ready(const std::string& status);
  void stopping();

 private:
  void watch(std::chrono::microseconds interval);

  const LoopPulse* const pulse_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  ///< guarded by mutex_
  std::thread watchdog_;
};

}  // namespace poseidon
