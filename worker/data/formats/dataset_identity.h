#pragma once

// What tells a data set from another one of the same name, for as little reading as possible. A set
// is too large to be read before training begins, so its number of samples and some of them stand
// for all: an edit of a few samples may go unseen, another set does not.

#include "absl/status/statusor.h"
#include "common/job/data_identity.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

/// So many samples are read, evenly spread, the first and the last among them.
inline constexpr std::int64_t kIdentitySamples = 64;

/// The same on every machine, however the set lies on disk as long as its samples' bytes are the
/// same. Where one of them is unreadable there is no digest. Errors are the data set's, and final.
absl::StatusOr<DatasetIdentity> identity_of(const Dataset& dataset);

}  // namespace poseidon
