#pragma once

// Which node did not answer, carried along with the failure that says so in words.
//
// Before: whoever talks to nodes gives one up (sync/links/chunk_links.h,
// sync/client/factor_exchange.h, common/checkpoint/store_client.h). After:
// common/node/job_reports.h tells the coordinator, where coordinator/members/unreachable_pairs.h
// judges which end of the connection is to blame. Pure.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace poseidon {

inline constexpr absl::string_view kUnreachablePayload = "poseidon/unreachable";

/// UNAVAILABLE: nothing comes from the node at `address` (HOST:PORT, as plans and manifests have
/// it), for as long as it may take. `text` is for people, and names it, too.
inline absl::Status unreachable_error(absl::string_view address, absl::string_view text) {
  absl::Status status = absl::UnavailableError(text);
  status.SetPayload(kUnreachablePayload, absl::Cord(address));
  return status;
}

/// The address of whom the failure is about; "" when it does not say.
inline std::string unreachable_address(const absl::Status& status) {
  const auto address = status.GetPayload(kUnreachablePayload);
  return address ? std::string(*address) : "";
}

/// The same failure in other words.
inline absl::Status reworded(const absl::Status& status, absl::string_view text) {
  const std::string address = unreachable_address(status);
  return address.empty() ? absl::Status(status.code(), text) : unreachable_error(address, text);
}

}  // namespace poseidon
