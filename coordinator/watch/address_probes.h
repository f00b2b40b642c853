#pragma once

// Remembers which nodes announced an address to which the coordinator cannot connect. Each is tried
// when it joins, and those that did not answer are tried again, on another thread.
//
// Called by: coordinator/cluster/cluster.h, with each join and many times a second; the status
// shows the notes. Calls: `reach` (coordinator/members/reach_addresses.h) on the background.
//
// A note is advice. Nothing is decided by it: the other nodes may reach what the coordinator does
// not.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/threads/mutex.h"
#include "common/transport/background.h"
#include "coordinator/members/membership.h"

namespace poseidon {

class AddressProbes {
 public:
  /// Blocks. One status per address; `stop`: the answers do not count any more.
  using Reach = std::function<std::vector<absl::Status>(const std::vector<std::string>& addresses,
                                                        const std::atomic<bool>& stop)>;
  struct Seams {
    Reach reach;                             ///< null: nothing is tried
    std::unique_ptr<Background> background;  ///< set where `reach` is
  };
  /// With the mutex held: a line for the log. `is_bad`: an address does not answer; else it does
  /// again.
  using Tell = std::function<void(bool is_bad, const std::string& text)>;

  /// All but the constructor and the destructor are called with `mutex` held.
  AddressProbes(Seams seams, Mutex& mutex, Tell tell);
  /// Waits until the background has stopped; without the mutex.
  ~AddressProbes();
  AddressProbes(const AddressProbes&) = delete;
  AddressProbes& operator=(const AddressProbes&) = delete;

  void on_join(const NodeInfo& node);
  void tick(const std::vector<NodeInfo>& members, Nanoseconds now);
  /// For people; "" when its address answers, or has not been tried.
  std::string note(NodeId node) const;

 private:
  void look();
  void take_answer(const NodeInfo& node, const absl::Status& status);

  const Reach reach_;
  Mutex& mutex_;
  const Tell tell_;
  std::map<NodeId, NodeInfo> waiting_;       ///< to be tried
  std::map<NodeId, std::string> unreached_;  ///< why
  bool is_looking_ = false;
  Nanoseconds looked_{0};  ///< when those that did not answer were tried again
  std::atomic<bool> stop_{false};
  std::unique_ptr<Background> background_;  ///< last: its thread uses all above
};

}  // namespace poseidon
