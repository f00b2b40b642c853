#include "common/daemon/parent.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace poseidon {

absl::Status follow_parent(pid_t parent) {
  if (::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) {
    return absl::ErrnoToStatus(errno, "cannot follow the parent process (prctl PR_SET_PDEATHSIG)");
  }
  // No signal comes of a parent that has ended before it was asked for.
  if (::getppid() == parent) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("--exit-with-parent ", parent,
                                           ": that process did not start this one, or has ended"));
}

}  // namespace poseidon
