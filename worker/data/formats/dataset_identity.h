#pragma once

// Computes a fingerprint that distinguishes data sets of the same name, with little reading. A set
// is too large to read before training, so the fingerprint covers the number of samples and some of
// them: it may miss an edit of a few samples, but not another set.
//
// Called by: worker/native_framework.h; coordinator/job/job_run.h compares. Calls:
// worker/data/formats/dataset.h.

#include "absl/status/statusor.h"
#include "common/job/data_identity.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

/// Number of samples that are read, evenly spread, including the first and the last.
inline constexpr std::int64_t kIdentitySamples = 64;

/// The identity depends only on the samples' bytes, not on the machine or the storage. Without a
/// digest when one of the samples is unreadable. Errors are the data set's, and final.
absl::StatusOr<DatasetIdentity> identity_of(const Dataset& dataset);

}  // namespace poseidon
