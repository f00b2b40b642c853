#include "coordinator/job/recovery.h"

#include <algorithm>
#include <limits>

namespace poseidon {

std::optional<HeldVersions> Recovery::held_together(Iteration first,
                                                    const std::vector<Participant>& workers,
                                                    const std::vector<Participant>& servers) const {
  HeldVersions together{.oldest = first, .newest = std::numeric_limits<Iteration>::max()};
  for (const auto* group : {&workers, &servers}) {
    for (const Participant& p : *group) {
      if (p.state == ParticipantState::kLost) continue;
      const auto found = held.find(p.node.id);
      if (p.state != ParticipantState::kHalted) return std::nullopt;
      const HeldVersions its = found == held.end() ? HeldVersions{} : found->second;
      together.oldest = std::max(together.oldest, its.oldest);
      together.newest = std::min(together.newest, its.newest);
    }
  }
  return together;
}

void Recovery::extend_deadlines(Nanoseconds duration, Nanoseconds now) {
  since = std::min(since + duration, now);
  vacant_since = std::min(vacant_since + duration, now);
}

}  // namespace poseidon
