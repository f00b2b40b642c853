#pragma once

// Reads one sample of the set, decodes and transforms it, and replaces it when it is unreadable.
//
// Called by: worker/data/feed/batch_ring.h, with Sampler's index and a place in a Batch. Calls:
// Dataset, worker/data/images.
//
// The next readable sample in index order (the first follows the last) replaces an unreadable one,
// with its label, at the same position, so with the same random choices. Only a sample's bytes and
// position decide whether it is readable, so all runs, with any number of workers and threads,
// choose the same replacement. A sample that is unreadable at every position is remembered and not
// tried again; one that is readable at some (a JPEG damaged below some crops) is tried each time.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/probes/data_probe.h"
#include "common/threads/mutex.h"
#include "worker/data/batch.h"
#include "worker/data/formats/dataset.h"
#include "worker/data/images/image_decoder.h"
#include "worker/data/images/transform.h"

namespace poseidon {

/// How many unreadable samples are logged by name; further ones are only counted.
inline constexpr std::size_t kMaxNamedSamples = 50;

/// The unreadable samples that one worker found in one set, shared by the readers of one phase.
/// Thread-safe.
class CorruptSamples {
 public:
  using Log = std::function<void(const std::string&)>;

  /// At most `max_share` of the set's samples, rounded up, may be unreadable. `probe` and `log` may
  /// be null; `log` is called from readers' threads, one at a time.
  CorruptSamples(std::shared_ptr<const Dataset> dataset, double max_share,
                 std::shared_ptr<DataProbe> probe, Log log);

  /// Records sample `index`; idempotent. DATA_LOSS, naming it, when there are too many.
  absl::Status add(std::int64_t index, const absl::Status& reason);

  /// Sample `index`, which was added, is unreadable at every position.
  void never_again(std::int64_t index);
  /// The first sample from `index` on that may be readable; size() where there is none.
  std::int64_t next_candidate(std::int64_t index) const;

 private:
  const std::shared_ptr<const Dataset> dataset_;
  const std::int64_t limit_;
  const std::shared_ptr<DataProbe> probe_;
  const Log log_;
  mutable Mutex mutex_;
  std::set<std::int64_t> found_ ABSL_GUARDED_BY(mutex_);        ///< at most limit_ + 1
  std::set<std::int64_t> never_again_ ABSL_GUARDED_BY(mutex_);  ///< those of found_
  std::atomic<bool> has_any_{false};  ///< false for most sets, which saves the lock
};

/// Reads samples of one set. Has scratch memory: one thread.
class SampleReader {
 public:
  SampleReader(std::shared_ptr<const Dataset> dataset, Transform transform,
               std::shared_ptr<CorruptSamples> corrupt);

  /// Fills `output` and `label` with sample `index` or its replacement. Errors are final and name
  /// the sample. CANCELLED once `stop` is set, which is checked before each attempt; may be null.
  absl::Status read(std::int64_t index, std::uint64_t position, Phase phase,
                    std::span<float> output, std::int32_t& label,
                    const std::atomic<bool>* stop = nullptr);

 private:
  /// `everywhere`: an error would be the same at every position.
  absl::Status read_this(std::int64_t index, std::uint64_t position, Phase phase,
                         std::span<float> output, bool& everywhere);

  const std::shared_ptr<const Dataset> dataset_;
  const std::shared_ptr<CorruptSamples> corrupt_;
  Transform transform_;
  EncodedSample sample_;
  ImageDecoder decoder_;
  Image image_;
};

}  // namespace poseidon
