#pragma once

// Identifies the samples that a job trains and tests on, as a worker found them. It detects two
// workers with different files of the same name, and files that changed since a checkpoint. Pure.
//
// Called by: worker/data/formats/dataset_identity.h fills it; coordinator/job/job_run.h compares.
// Calls: nothing.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct DatasetIdentity {
  std::uint64_t samples = 0;
  /// Covers the number, shape, labels and bytes of some samples spread over the set. 0: unknown,
  /// because one of them could not be read.
  std::uint64_t digest = 0;

  friend bool operator==(const DatasetIdentity&, const DatasetIdentity&) = default;
};

struct DataIdentity {
  DatasetIdentity train;
  std::optional<DatasetIdentity> test;  ///< nullopt: the job does not test

  friend bool operator==(const DataIdentity&, const DataIdentity&) = default;
};

/// "" when the two may be the same; otherwise the difference, for people: "59000 training samples
/// here, 60000 there", "other training samples (60000, as many as there)".
std::string data_difference(const DataIdentity& here, const DataIdentity& there);

/// `known`, with missing digests filled in from `found`. The two must not differ.
DataIdentity joined(const DataIdentity& known, const DataIdentity& found);

/// {"train": {"samples": 60000, "digest": 81985529216486895}, "test": ...}
nlohmann::json data_identity_to_json(const DataIdentity& data);
/// INVALID_ARGUMENT, starting with `source` and `path`, names what is wrong.
absl::StatusOr<DataIdentity> data_identity_from_json(const nlohmann::json& json,
                                                     std::string_view source,
                                                     std::string_view path);

void put_data_identity(const DataIdentity& data, v1::Ready& ready);
/// nullopt where the message has none: from a server, or from a worker of an earlier version.
std::optional<DataIdentity> data_identity_of(const v1::Ready& ready);

}  // namespace poseidon
