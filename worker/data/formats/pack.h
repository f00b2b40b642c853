#pragma once

// Packs a whole set into record files, or checks every sample of one.
//
// Called by: `poseidon data` (cli/commands/data_command.h). Calls: records_writer.h.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

/// Progress callbacks, on the calling thread. Each may be empty.
struct VisitEvents {
  /// A sample cannot be read; in index order.
  std::function<void(const std::string& name, const std::string& reason)> unreadable;
  /// Number of samples checked so far; called every few dozen samples.
  std::function<void(std::int64_t samples)> visited;
};

struct SampleCounts {
  std::int64_t good = 0;
  std::int64_t unreadable = 0;
};

/// Reads and fully decodes every sample on `threads` threads. Unreadable ones are counted and
/// reported; a returned error is the machine's.
absl::StatusOr<SampleCounts> check_samples(const Dataset& dataset, int threads,
                                           const VisitEvents& events);

struct PackOptions {
  /// Number of files; 0: as needed with shard_bytes each (see shard_limit).
  std::int64_t shards = 0;
  std::uint64_t shard_bytes = std::uint64_t{1} << 30;
  int threads = 1;                  ///< that decode, to see that all samples are good
  double max_corrupt_share = 0.01;  ///< with more (rounded up) nothing is written
};

/// The size limit of file number `shard` (from 0). A set's size is known only at its end, and there
/// are at most kMaxShards files. So from half of them on the limit doubles with every 32 files; 1
/// GiB then suffices for 16 TiB.
std::uint64_t shard_limit(std::uint64_t shard_bytes, std::int64_t shard);

struct PackReport {
  SampleCounts samples;
  std::int64_t shards = 0;
  std::uint64_t bytes = 0;
};

/// Writes the readable samples to `folder`, in index order, as they are: encoded images stay as
/// they came. Unreadable ones are left out, so the samples behind them have other indices than in
/// the source.
absl::StatusOr<PackReport> pack_records(const Dataset& dataset, const std::filesystem::path& folder,
                                        const PackOptions& options, const VisitEvents& events);

}  // namespace poseidon
