#pragma once

// Attaches the address of a node that did not answer to the status that reports it. Pure.
//
// Called by: sync/links/chunk_links.h, sync/client/factor_exchange.h and
// common/checkpoint/store_client.h, when they give up on a node. common/node/job_reports.h reports
// the address to the coordinator, where coordinator/members/unreachable_pairs.h judges which end of
// the connection is to blame. Calls: nothing.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace poseidon {

inline constexpr absl::string_view kUnreachablePayload = "poseidon/unreachable";

/// UNAVAILABLE: the node at `address` (HOST:PORT, as in plans and manifests) did not answer in
/// time. `text` is for people and names the node, too.
inline absl::Status unreachable_error(absl::string_view address, absl::string_view text) {
  absl::Status status = absl::UnavailableError(text);
  status.SetPayload(kUnreachablePayload, absl::Cord(address));
  return status;
}

/// The address of the node that failed; "" when the status carries none.
inline std::string unreachable_address(const absl::Status& status) {
  const auto address = status.GetPayload(kUnreachablePayload);
  return address ? std::string(*address) : "";
}

/// The same failure with another text; keeps the address.
inline absl::Status reworded(const absl::Status& status, absl::string_view text) {
  const std::string address = unreachable_address(status);
  return address.empty() ? absl::Status(status.code(), text) : unreachable_error(address, text);
}

}  // namespace poseidon
