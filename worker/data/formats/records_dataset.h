#pragma once

// A folder of record files (record_format.h), as `poseidon data pack` writes it, as a data set of
// encoded samples or pixels.
//
// Called by: worker/data/formats/dataset.h. Calls: record_format.h.
//
// Sample i of the set is the i-th record, shard after shard. Opening reads only the indexes (12
// bytes per sample); reading a sample is one positioned read.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

/// shard-00000.records
std::string shard_name(std::int64_t shard);

/// NOT_FOUND, INVALID_ARGUMENT or DATA_LOSS naming the file: a folder without shards, a missing or
/// foreign shard, a damaged or unfinished one, labels that the network does not know.
absl::StatusOr<std::shared_ptr<const Dataset>> open_records_dataset(
    const std::filesystem::path& folder, std::int64_t classes);

/// The class names alone, out of the first shard.
absl::StatusOr<std::vector<std::string>> read_record_classes(const std::filesystem::path& folder);

}  // namespace poseidon
