#pragma once

// Keeps a job from recovering for ever: counts the recoveries that got it nowhere. Pure.
//
// Called by: coordinator/job/recovery.h, at each loss and each new iteration; it ends the job that
// has recovered too often.
// Calls: nothing.

#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"

namespace poseidon {

struct IdleRecoveriesOptions {
  /// In a row, of which none had anything to keep of what the one before did.
  int most = 5;
  /// Losses within this time of one that counted are of the same trouble, as when 64 nodes come
  /// back one by one; yet it does not begin anew with them, so that a loop of crashes ends.
  Nanoseconds spacing = std::chrono::seconds(3);
  /// Times as many may happen before the job is where it was once, each a little further than the
  /// one before.
  int most_on_the_way = 20;
};

/// One job's.
class IdleRecoveries {
 public:
  explicit IdleRecoveries(IdleRecoveriesOptions options) : options_(options) {}

  /// A loss ends an epoch that began at this iteration. What was done since the recovery before is
  /// kept where that is further, though the job may have been further still: on the way back there
  /// from an old checkpoint others may be lost, too.
  void count(Iteration began_at, Nanoseconds now);
  /// An iteration is finished that never was before.
  void got_on() { in_a_row_ = since_new_ = 0; }
  /// How often, for people ("5 times in a row"), once it is too often.
  std::optional<std::string> too_often() const;

 private:
  const IdleRecoveriesOptions options_;
  int in_a_row_ = 0;
  int since_new_ = 0;
  Iteration last_began_at_ = 0;  ///< the epoch that the last one ended
  Nanoseconds counted_{0};       ///< the last of in_a_row_
};

}  // namespace poseidon
