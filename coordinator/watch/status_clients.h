#pragma once

// The clients that poll the status: when each polled last, and whether it was told that the job
// ended. Shutdown waits for those that were not.
// Called by: coordinator/cluster/cluster.cc. Calls: nothing.
//
// Invariant: a client that has not polled for `patience` is forgotten and no longer waited for.
// Used with Cluster's mutex held (coordinator/cluster/cluster_context.h); wait_until_told releases
// it while it waits.

#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/threads/mutex.h"

namespace poseidon {

class StatusClients {
 public:
  explicit StatusClients(Nanoseconds patience) : patience_(patience) {}

  /// `client` polls now; `end_told`: the answer says that the job ended.
  void on_poll(const std::string& client, bool end_told, Nanoseconds now);
  /// A new job begins; no client knows its end yet.
  void on_new_job();
  /// Every client that still polls knows that the job ended.
  bool all_told() const;
  /// Waits until all_told, for `patience` at most. `mutex` is Cluster's, and held.
  void wait_until_told(Mutex& mutex, Nanoseconds now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  struct Client {
    Nanoseconds polled{0};
    bool end_told = false;
  };
  void forget_silent(Nanoseconds now);

  const Nanoseconds patience_;
  std::map<std::string, Client> clients_;
  CondVar told_;
};

}  // namespace poseidon
