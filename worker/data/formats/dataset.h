#pragma once

// A set of labelled samples in any storage.
//
// Called by: SampleReader (sample_reader.h), which reads the indices that the sampler picks,
// decodes and transforms. Calls: the formats (idx.h, cifar.h, image_folder.h, records_dataset.h).

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data_spec.h"
#include "models/net/net.h"

namespace poseidon {

/// The encoding of a sample's bytes.
enum class Encoding : std::uint8_t {
  kPixels = 0,  ///< uint8, C x H x W
  kImage = 1,   ///< a JPEG or PNG file
};

/// One sample as it lies in the set.
struct EncodedSample {
  Encoding encoding = Encoding::kPixels;
  std::int32_t label = 0;
  /// In `buffer` or in the data set's memory: valid until the next read into this object and while
  /// the data set lives.
  std::span<const std::uint8_t> bytes;
  std::vector<std::uint8_t> buffer;  ///< grows, and is used again
};

/// Immutable; every method may be called from any thread at the same time.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;  ///< samples, > 0
  /// {channels, height, width} of every sample, each > 0; {0, 0, 0} for encoded images, which may
  /// have any size and can be decoded to any number of channels.
  virtual const Shape& sample_shape() const = 0;
  /// Names of the labels from 0 on; empty when the format has none.
  virtual const std::vector<std::string>& class_names() const = 0;
  /// Reads sample `index` (0 <= index < size()). The caller may replace an unreadable sample
  /// (is_unreadable) by another; every other error is final. Messages do not name the sample.
  virtual absl::Status read(std::int64_t index, EncodedSample& sample) const = 0;
  /// For messages: the sample's file, and its place in it.
  virtual std::string sample_name(std::int64_t index) const = 0;
  /// For messages: the files that the samples come from.
  virtual const std::string& name() const = 0;
  /// For people: files in the set's place that are not samples but may look like some.
  virtual std::vector<std::string> remarks() const { return {}; }

  /// Whether will_read helps.
  virtual bool reads_ahead() const { return false; }
  /// Sample `index` will be read soon: the system may fetch it meanwhile. Does not wait.
  virtual void will_read(std::int64_t /*index*/) const {}
};

/// Whether this is about one sample's file or bytes (missing, not permitted, not a file, corrupt),
/// rather than about the machine.
bool is_unreadable(const absl::Status& status);

/// Samples held in memory: what the readers of small sets return, and a twin for tests.
class MemoryDataset final : public Dataset {
 public:
  /// `pixels` are size x C x H x W, `labels` size; programming error if they do not fit together.
  MemoryDataset(std::string name, Shape sample_shape, std::vector<std::uint8_t> pixels,
                std::vector<std::uint8_t> labels);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  const Shape& sample_shape() const override { return sample_shape_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  absl::Status read(std::int64_t index, EncodedSample& sample) const override;
  std::string sample_name(std::int64_t index) const override;
  const std::string& name() const override { return name_; }

 private:
  const std::string name_;
  const Shape sample_shape_;
  const std::size_t sample_bytes_;
  const std::vector<std::uint8_t> pixels_;
  const std::vector<std::uint8_t> labels_;
  const std::vector<std::string> class_names_;  ///< none
};

/// Opens the source that a job names. Small sets (idx, cifar) are read whole, other sets only their
/// indexes. `classes`: labels are 0 to classes - 1, the network's classes. Errors name file, place
/// and remedy.
absl::StatusOr<std::shared_ptr<const Dataset>> open_dataset(const DataSourceSpec& source,
                                                            std::int64_t classes);

/// Training and test set must give the same label to the same name. OK when one has no names.
absl::Status check_same_classes(const std::vector<std::string>& train,
                                const std::vector<std::string>& test);

/// The class names of a source, without reading its samples; empty for formats without.
absl::StatusOr<std::vector<std::string>> class_names_of(const DataSourceSpec& source);

}  // namespace poseidon
