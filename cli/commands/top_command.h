#pragma once

// `poseidon top`: shows the cluster on a terminal and refreshes it until the user quits.
//
// Called by: cli/main.cc. Calls: the coordinator, for its status; cli/terminal/top_format.h.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/remote/coordinator_client.h"

namespace poseidon {

struct TopOptions : CoordinatorAccess {
  bool json = false;        ///< one object per line instead
  double interval_s = 1.0;  ///< between two looks
  std::int64_t frames = 0;  ///< number of refreshes; 0: until q, Ctrl-C or SIGTERM
};
/// On a terminal it uses the whole screen and restores it; elsewhere it prints one screen after the
/// other. It shows that a coordinator is silent and waits for it: on a terminal for ever, elsewhere
/// for 15 s (UNAVAILABLE).
absl::Status run_top(const TopOptions& options);

}  // namespace poseidon
