#pragma once

// What a daemon tells the service manager (systemd, by sd_notify) that started it: that it is
// ready, what it does, that it still lives, that it stops. Does nothing where there is none.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace poseidon {

class ServiceManager {
 public:
  /// `alive` is asked on a thread of its own, twice per watchdog interval (WatchdogSec of the unit;
  /// never when it has none): whether the daemon's own loops still turn. When it says no, or does
  /// not return, nothing is told, and the manager kills and restarts the daemon.
  explicit ServiceManager(std::function<bool()> alive);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  /// It listens, and others may be started that need it. `status`: one line for people.
  void ready(const std::string& status);
  void stopping();

 private:
  void watch(std::chrono::microseconds interval);

  const std::function<bool()> alive_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread watchdog_;
};

/// Whether a loop turned since it was asked last. The loop calls turn() at least twice per watchdog
/// interval; turned() is the `alive` of a ServiceManager.
class LoopPulse {
 public:
  void turn() { turned_.store(true, std::memory_order_relaxed); }
  bool turned() { return turned_.exchange(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool> turned_{true};
};

}  // namespace poseidon
