#include "common/daemon/service_manager.h"

#include <systemd/sd-daemon.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/threads/mutex.h"

namespace poseidon {

ServiceManager::ServiceManager(const LoopPulse* pulse) : pulse_(pulse) {
  std::uint64_t interval_us = 0;
  if (::sd_watchdog_enabled(/*unset_environment=*/0, &interval_us) > 0 && interval_us > 0) {
    watchdog_ =
        std::thread([this, interval_us] { watch(std::chrono::microseconds(interval_us / 2)); });
  }
}

ServiceManager::~ServiceManager() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

void ServiceManager::ready(const std::string& status) {
  ::sd_notify(0, absl::StrCat("READY=1\nSTATUS=", status).c_str());
}

void ServiceManager::stopping() { ::sd_notify(0, "STOPPING=1"); }

void ServiceManager::watch(std::chrono::microseconds interval) {
  MutexLock lock(mutex_);
  while (!changed_.wait_for(mutex_, interval,
                            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; })) {
    lock.unlock();
    if (pulse_->alive(SystemClock().now(), interval).ok()) ::sd_notify(0, "WATCHDOG=1");
    lock.lock();
  }
}

}  // namespace poseidon
