#pragma once

// Nodes that failed or died before an iteration that was new was made with them, and those that
// others do not reach, by where they ran. A process that is started again and again must not stop
// the others again and again: from its place nobody is taken for a while, which doubles with each.
// Pure.
//
// Before: job_run.h saw a newcomer fail. After: job_run.h asks who may take a place.

#include <map>
#include <string>

#include "common/base/clock.h"
#include "coordinator/members/membership.h"

namespace poseidon {

struct MishapOptions {
  /// From the second on of the newcomers in a row from one place: until the next one from there is
  /// taken in. Doubles with each.
  Nanoseconds first_pause = std::chrono::seconds(10);
  Nanoseconds longest_doubled_pause = std::chrono::hours(1);
};

class Mishaps {
 public:
  explicit Mishaps(MishapOptions options) : options_(options) {}

  /// `cost`: what the others waited for it. A pause is worth a multiple of that.
  void count(const NodeInfo& newcomer, Nanoseconds cost, Nanoseconds now);
  /// One came from where `node` is.
  bool knows(const NodeInfo& node) const;
  /// `needed`: without it the job could not go on, so that a short pause must do.
  bool may_try(const NodeInfo& node, bool needed, Nanoseconds now) const;
  /// It has shown what it can do.
  void forget(const NodeInfo& node);

 private:
  struct InARow {
    int count = 0;
    Nanoseconds last{0};   ///< when
    Nanoseconds until{0};  ///< who comes from there is not taken before, unless it is needed
  };

  const MishapOptions options_;
  std::map<std::string, InARow> by_place_;
};

}  // namespace poseidon
