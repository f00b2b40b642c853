#pragma once

// Errors of reading samples that are this machine's own: its disk, or its way to a shared one, does
// not give what it gave when the job was prepared. The samples may be fine everywhere else, so the
// job goes on without this worker.
//
// Before: worker/trainer.cc knows that it was a sample that could not be read. After:
// worker/worker_job.cc leaves the cluster for it.

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
