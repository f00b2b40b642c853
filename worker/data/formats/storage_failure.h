#pragma once

// Marks read errors that are this machine's own: its disk, or its path to a shared one, does not
// return the data that it returned when the job was prepared. The samples may be fine on other
// machines, so the job continues without this worker.
//
// Called by: worker/trainer.cc, when a sample cannot be read; worker/native_framework.h, which then
// leaves the cluster. Calls: nothing.

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace poseidon {

inline constexpr char kStorageFailureUrl[] = "poseidon/storage";

/// The same error, marked.
inline absl::Status storage_failure(absl::Status status) {
  status.SetPayload(kStorageFailureUrl, absl::Cord());
  return status;
}

inline bool is_storage_failure(const absl::Status& status) {
  return status.GetPayload(kStorageFailureUrl).has_value();
}

}  // namespace poseidon
