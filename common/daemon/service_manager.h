#pragma once

// Reports to the service manager (systemd, by sd_notify) that started the daemon: ready, status,
// watchdog, stopping. Does nothing without a service manager.
//
// Called by: main(); the daemon's loop turns the pulse (common/threads/loop_pulse.h). Calls: the
// service manager, which restarts a daemon whose pulse stops.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "common/threads/loop_pulse.h"

namespace poseidon {

class ServiceManager {
 public:
  /// A thread checks `pulse` twice per watchdog interval (WatchdogSec of the unit; never without
  /// one). It skips the report when the pulse was silent for half an interval; after a whole
  /// interval without a report the manager kills and restarts the daemon. `pulse` must outlive
  /// this.
  explicit ServiceManager(const LoopPulse* pulse);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  /// Reports that the daemon listens, so units that depend on it may start. `status`: one line for
  /// people.
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
