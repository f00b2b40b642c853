#pragma once

// `poseidon data`: packs a set into record files, and finds unreadable samples.
//
// Called by: cli/main.cc. Calls: worker/data/formats/pack.h.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data_spec.h"

namespace poseidon {

/// The source as on the command line; "" where an option was not given.
struct DataSourceOptions {
  std::vector<std::string> sources;
  std::string format;
  std::string labels;
  int threads = 0;  ///< 0: all cores
};

/// The source as a job names it. Without a format it is detected from the folder's content.
/// INVALID_ARGUMENT or NOT_FOUND with the remedy.
absl::StatusOr<DataSourceSpec> source_of(const DataSourceOptions& options);

struct DataPackOptions {
  DataSourceOptions source;
  std::string to;
  std::int64_t shards = 0;  ///< 0: by shard_bytes
  std::uint64_t shard_bytes = std::uint64_t{1} << 30;
  double max_corrupt_share = 0.01;
};
/// Each sample that cannot be read is named on stdout. Long runs show their progress on stderr.
absl::Status run_data_pack(const DataPackOptions& options);

/// DATA_LOSS when a sample cannot be read; each is named on stdout.
absl::Status run_data_check(const DataSourceOptions& options);

/// "153,000 of 1,281,167 samples (12 %), 2311/s, 8:08 to go": `done` of them in `seconds`, both >
/// 0.
std::string visit_progress(std::int64_t done, std::int64_t samples, double seconds);

}  // namespace poseidon
