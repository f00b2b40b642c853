#include "coordinator/full_door.h"

#include <utility>

namespace poseidon {

void FullDoor::look(std::uint64_t refused, Nanoseconds now) {
  if (std::exchange(refused_, refused) != refused) last_ = now;
}

std::string FullDoor::text(Nanoseconds now) const {
  if (!last_ || now - *last_ > kTold) return "";
  return "the coordinator refuses connections (too_many), since it has as many open as it may "
         "have: "
         "nodes, streams and worker 0's upload of the model may not get through, and try again; "
         "let it open more files (LimitNOFILE=, ulimit -n), or find in its log who opens so many";
}

}  // namespace poseidon
