#include "coordinator/members/lost_time.h"

#include <algorithm>
#include <utility>

namespace poseidon {

Nanoseconds LostTime::look(Nanoseconds now, std::optional<Nanoseconds> isolated_since) {
  const Nanoseconds before = std::exchange(last_look_, now);
  const bool is_first = before == Nanoseconds::zero();
  const bool was_cut_off = std::exchange(is_cut_off_, isolated_since.has_value());
  Nanoseconds lost{0};
  if (was_cut_off || (now - before > lease_ && !is_first)) lost += count_from(before, now);
  if (isolated_since) lost += count_from(*isolated_since, now);
  return lost;
}

Nanoseconds LostTime::count_from(Nanoseconds begin, Nanoseconds now) {
  begin = std::max(begin, counted_until_);
  counted_until_ = now;
  return std::max(now - begin, Nanoseconds::zero());
}

}  // namespace poseidon
