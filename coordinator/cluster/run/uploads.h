#pragma once

// Decides whether worker 0 may upload the trained model, and remembers why the last upload failed.
// Called by: cluster.cc (service.cc receives the bytes). Calls: nothing; pure.
//
// Invariants
//  1. At most one upload per epoch is under way. An upload of an older epoch may hang; a newer
//  epoch
//     does not wait for it.
//  2. A refusal is reported once, and again only when its reason changes.
// Used with Cluster's mutex held (cluster_context.h).

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/plan/plan.h"

namespace poseidon {

/// The status to send for a model that could not be stored. A full disk may have room again, a
/// folder may come back, and only worker 0 has the model: such errors become UNAVAILABLE, and
/// worker 0 retries for as long as it waits for a coordinator. A part that does not fit stays
/// INVALID_ARGUMENT.
absl::Status worth_another_try(const absl::Status& status);

class Uploads {
 public:
  /// Reserves the upload of this epoch's model of `total_bytes`. UNAVAILABLE: another upload of it
  /// is under way. INVALID_ARGUMENT: larger than a model of this plan can be.
  absl::Status begin(std::uint64_t epoch, std::uint64_t total_bytes, const Plan& plan);
  /// Ends the upload with its outcome. Returns the text of an alarm when the disk refused the model
  /// for a new reason.
  std::optional<std::string> end(std::uint64_t epoch, const absl::Status& status);
  /// For the job's status: why the last upload failed and will be retried; "" when it did not.
  std::string retry_text() const;

 private:
  std::optional<std::uint64_t> epoch_;  ///< of the upload under way
  std::string refused_;                 ///< why the last one failed, if it will be retried
};

}  // namespace poseidon
