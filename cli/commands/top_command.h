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
  double interval_s = 1.0;  ///< between refreshes
  std::int64_t frames = 0;  ///< number of refreshes; 0: until q, Ctrl-C or SIGTERM
};
/// On a terminal it uses the whole screen and restores it at the end; otherwise it prints each
/// refresh below the previous one. When the coordinator does not answer, it shows that and keeps
/// asking: on a terminal until the user quits, otherwise for 15 s (then UNAVAILABLE).
absl::Status run_top(const TopOptions& options);

}  // namespace poseidon
