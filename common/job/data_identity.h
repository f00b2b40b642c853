#pragma once

// Which samples a job trains on and is tested on, as a worker found them at its place: told apart
// when two workers were given other files of the same name, or when the files have changed since a
// checkpoint. Pure. Before: worker/data/formats/dataset_identity.h. After:
// coordinator/job/job_run.h compares.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct DatasetIdentity {
  std::uint64_t samples = 0;
  /// Of the number, shape, labels and bytes of some samples spread over the set. 0: not known, as
  /// one of them could not be read.
  std::uint64_t digest = 0;

  friend bool operator==(const DatasetIdentity&, const DatasetIdentity&) = default;
};

struct DataIdentity {
  DatasetIdentity train;
  std::optional<DatasetIdentity> test;  ///< nothing: the job tests nothing

  friend bool operator==(const DataIdentity&, const DataIdentity&) = default;
};

/// "" where the two may be the same; otherwise how `here` differs from `there`, for people:
/// "59000 training samples here, 60000 there", "other training samples (60000, as many as there)".
std::string data_difference(const DataIdentity& here, const DataIdentity& there);

/// `known`, with the digests of `found` where it has none. For two between which there is no
/// difference.
DataIdentity joined(const DataIdentity& known, const DataIdentity& found);

/// {"train": {"samples": 60000, "digest": 81985529216486895}, "test": ...}
nlohmann::json data_identity_to_json(const DataIdentity& data);
/// INVALID_ARGUMENT, starting with `source` and `path`, names what is wrong.
absl::StatusOr<DataIdentity> data_identity_from_json(const nlohmann::json& json,
                                                     std::string_view source,
                                                     std::string_view path);

void put_data_identity(const DataIdentity& data, v1::Ready& ready);
/// Nothing where it has none: a server's, or that of an earlier version's worker.
std::optional<DataIdentity> data_identity_of(const v1::Ready& ready);

}  // namespace poseidon
