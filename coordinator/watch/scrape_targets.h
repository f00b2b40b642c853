#pragma once

// Keeps prometheus-targets.json: the metrics pages of all daemons, for Prometheus's discovery.
// Called by: coordinator/cluster/. Calls: the disk, on a Background.
//
// Invariants
//  1. The file is written when its text changes, and only then.
//  2. A failed write (the disk is full) is tried again, at most every two seconds.
//  3. The file stays when the coordinator ends, because nodes may continue. Used with `mutex` held;
//     the Background's work runs without it and takes it for its result.

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/threads/mutex.h"
#include "common/transport/background.h"
#include "coordinator/members/membership.h"

namespace poseidon {

class ScrapeTargets {
 public:
  /// All references must outlive it and the writes that it has queued on `disk`.
  ScrapeTargets(const std::filesystem::path& folder, const Clock& clock, Mutex& mutex,
                Background& disk);

  /// HOST:PORT of the coordinator's own metrics, "" for none. `has_tls`: pages that other machines
  /// reach speak TLS. Follow with update.
  void set_own(const std::string& address, bool has_tls);
  const std::string& own_address() const { return own_address_; }
  /// Writes the file if it does not list these nodes' pages.
  void update(const std::vector<NodeInfo>& nodes);
  /// A failed write may be tried again now.
  bool wants_retry();

 private:
  const std::filesystem::path path_;
  const Clock& clock_;
  Mutex& mutex_;
  Background& disk_;
  std::string own_address_;
  bool has_tls_ = false;
  std::string text_;          ///< as last written, or about to be; "": not what the file says
  bool is_written_ = true;    ///< the last attempt succeeded
  Nanoseconds failed_at_{0};  ///< the last attempt, when it did not
};

}  // namespace poseidon
