#pragma once

// Logs when another node becomes unreachable, and when it answers again. Pure; one per connection,
// on the loop.
//
// Called by: sync/links/chunk_links.h and sync/client/factor_exchange.h, when a stream breaks and
// when a message arrives. Calls: the log (SyncerOptions::log).

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"

namespace poseidon {

class OutageLog {
 public:
  using Log = std::function<void(const std::string&)>;

  /// The stream to `who`, which last worked at `since`, is gone. Logs once per outage and at most
  /// once in kPause, so an unstable link does not fill the log. `log` may be empty.
  void cut(const std::string& who, const absl::Status& why, Nanoseconds since, Nanoseconds now,
           Nanoseconds give_up_after, const Log& log) {
    if (since_ || (last_ && now - *last_ < kPause)) return;
    since_ = last_ = since;
    if (!log) return;
    log(absl::StrFormat("the stream to %s is cut (%s): connecting again, for %.0f s at most", who,
                        why.ok() ? std::string("it was closed") : std::string(why.message()),
                        seconds(give_up_after)));
  }
  /// A message of the other node has arrived that advances the job: ends the outage.
  void over(const std::string& who, Nanoseconds now, const Log& log) {
    if (!since_) return;
    const Nanoseconds lasted = now - *since_;
    since_.reset();
    if (log) log(absl::StrFormat("%s answers again, after %.1f s", who, seconds(lasted)));
  }
  bool is_out() const { return since_.has_value(); }

 private:
  static constexpr Nanoseconds kPause{std::chrono::seconds(10)};
  std::optional<Nanoseconds> since_, last_;
};

}  // namespace poseidon
