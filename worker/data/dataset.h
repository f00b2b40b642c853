#pragma once

// A set of labelled samples, wherever they lie. Before: files (idx.h, cifar.h). After: the sampler
// picks indices, the transform makes the network's input of the pixels (batches.h).

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job.h"
#include "worker/engine/net.h"

namespace poseidon {

/// Immutable; every method may be called from any thread at the same time.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;  ///< samples, > 0
  /// {channels, height, width} of every sample, each > 0.
  virtual const Shape& sample_shape() const = 0;
  /// Copies sample `index` (0 <= index < size()) into `pixels`, which has room for exactly one
  /// sample, C x H x W. An error names file and index; the caller cannot mend it.
  virtual absl::Status read(std::int64_t index, std::span<std::uint8_t> pixels,
                            std::int32_t& label) const = 0;
  /// For messages: the files that the samples come from.
  virtual const std::string& name() const = 0;
};

/// Samples held in memory: what the readers of small sets return, and a twin for tests.
class MemoryDataset final : public Dataset {
 public:
  /// `pixels` are size x C x H x W, `labels` size; programming error if they do not fit together.
  MemoryDataset(std::string name, Shape sample_shape, std::vector<std::uint8_t> pixels,
                std::vector<std::uint8_t> labels);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  const Shape& sample_shape() const override { return sample_shape_; }
  absl::Status read(std::int64_t index, std::span<std::uint8_t> pixels,
                    std::int32_t& label) const override;
  const std::string& name() const override { return name_; }

 private:
  const std::string name_;
  const Shape sample_shape_;
  const std::size_t sample_bytes_;
  const std::vector<std::uint8_t> pixels_;
  const std::vector<std::uint8_t> labels_;
};

/// Opens the source that a job names and reads all of it. `classes`: labels are 0 to classes - 1,
/// as many as the network tells apart. Errors name file, place and remedy.
absl::StatusOr<std::shared_ptr<const Dataset>> open_dataset(const DataSourceSpec& source,
                                                            std::int64_t classes);

}  // namespace poseidon
