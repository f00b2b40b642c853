#pragma once

// Whether the coordinator refused connections a moment ago because it has as many as it may have,
// for `status` to say why a node, a stream or an upload of the model does not get through. Pure.
//
// Called by: coordinator/service.cc, several times a second and with each status. Calls: nothing.

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/clock.h"

namespace poseidon {

/// One thread only, or with a mutex of the caller.
class FullDoor {
 public:
  /// For so long after the last refusal people are told.
  static constexpr Nanoseconds kTold = std::chrono::seconds(60);

  /// `refused`: connections that were refused as too many, since the process began.
  void look(std::uint64_t refused, Nanoseconds now);
  /// For people: what is refused and the remedy; "" when there is nothing to tell.
  std::string text(Nanoseconds now) const;

 private:
  std::uint64_t refused_ = 0;
  std::optional<Nanoseconds> last_;
};

}  // namespace poseidon
