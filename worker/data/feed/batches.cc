#include "worker/data/feed/batches.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/base/text.h"
#include "worker/data/feed/sampler.h"

namespace poseidon {
namespace {

std::string shape_text(const Shape& shape) { return absl::StrJoin(shape, "x"); }

/// Advice for samples whose shape is not that of the network's input.
std::string shape_remedy(const TransformSpec& spec, const Shape& sample, const Shape& input) {
  if (input.size() != 3) return "give the network an input of that many values";
  if (sample[0] != input[0]) {
    return str_cat("give the network an input of ", sample[0], " channels, or take other data");
  }
  if (spec.random_resized_crop) {
    return str_cat("set data.transform.random_resized_crop.size to [", input[1], ", ", input[2],
                   "]");
  }
  const char* key = spec.random_crop.empty() ? "resize" : "random_crop";
  const std::int64_t pad = spec.random_crop.empty() ? 2 * spec.pad : 0;
  if (input[1] <= pad || input[2] <= pad) return "lower data.transform.pad";
  return str_cat("set data.transform.", key, " to [", input[1] - pad, ", ", input[2] - pad, "]");
}

/// The shape of samples when read: encoded images become grey or RGB, as the network needs.
absl::StatusOr<Shape> decoded_shape(const Dataset& dataset, const Shape& input_shape) {
  Shape shape = dataset.sample_shape();
  if (shape[0] != 0) return shape;
  shape[0] = input_shape.size() == 3 ? input_shape[0] : 3;
  if (shape[0] == 1 || shape[0] == 3) return shape;
  return absl::InvalidArgumentError(str_cat(
      dataset.name(), ": images are read as 1 (grey) or 3 (RGB) channels, the network takes ",
      shape[0], "; give it an input of 1 or 3 channels"));
}

absl::StatusOr<Transform> make_transform(const Dataset& dataset, const DataSpec& data,
                                         const Shape& input_shape) {
  POSEIDON_ASSIGN_OR_RETURN(const Shape decoded, decoded_shape(dataset, input_shape));
  absl::StatusOr<Transform> transform = Transform::make(data.transform, data.seed, decoded);
  if (!transform.ok()) {
    return absl::InvalidArgumentError(
        str_cat(dataset.name(), ": ", from_absl(transform.status().message())));
  }
  const Shape& sample = transform->output_shape();
  // A network of vectors (an MLP) takes an image's values in their order.
  const bool is_flat =
      input_shape.size() == 1 && element_count(sample) == element_count(input_shape);
  if (sample != input_shape && !is_flat) {
    return absl::InvalidArgumentError(str_cat(dataset.name(), ": samples are ", shape_text(sample),
                                              " after data.transform, the network takes ",
                                              shape_text(input_shape), "; ",
                                              shape_remedy(data.transform, sample, input_shape)));
  }
  return transform;
}

void check_placement(const BatchPlacement& placement) {
  POSEIDON_CHECK(placement.workers >= 1 && placement.rank < placement.workers,
                 "rank outside the workers");
  POSEIDON_CHECK(placement.batch_size >= 1, "batch size below 1");
}

/// One reader per thread, and their shared state.
std::vector<SampleReader> make_readers(const std::shared_ptr<const Dataset>& dataset,
                                       const DataSpec& data, const Transform& transform,
                                       const BatchOptions& options) {
  POSEIDON_CHECK(options.threads >= 1 && options.threads <= kMaxDataThreads, "data threads");
  const auto corrupt =
      std::make_shared<CorruptSamples>(dataset, data.max_corrupt_share, options.probe, options.log);
  std::vector<SampleReader> readers;
  for (int i = 0; i < options.threads; ++i) readers.emplace_back(dataset, transform, corrupt);
  return readers;
}

std::size_t batch_bytes(std::int64_t batch_size, const Shape& shape) {
  return static_cast<std::size_t>(batch_size * element_count(shape)) * sizeof(float);
}

absl::Status no_memory(std::size_t bytes, std::int64_t batch_size) {
  return absl::ResourceExhaustedError(
      str_cat("batches of ", batch_size, " samples take ", bytes >> 20,
              " MiB, as one is read while another is computed: too much for this machine; use a "
              "smaller batch_size (micro_batches divide what is computed, not what is read)"));
}

/// Starts the threads. At most `ahead` batches are read besides the one that the caller holds.
absl::StatusOr<std::unique_ptr<BatchRing>> make_ring(std::shared_ptr<const Dataset> dataset,
                                                     Sampler sampler, const BatchSequence& sequence,
                                                     std::vector<SampleReader> readers,
                                                     const Shape& shape, std::size_t ahead,
                                                     std::shared_ptr<DataProbe> probe) {
  const std::size_t bytes = batch_bytes(sequence.batch_size, shape);
  const std::size_t slots = BatchRing::slots_for(bytes, ahead + 1);
  // As floating point: the product may not fit.
  if (static_cast<double>(slots) * static_cast<double>(bytes) >=
      static_cast<double>(installed_memory_bytes())) {
    return no_memory(slots * bytes, sequence.batch_size);
  }
  std::unique_ptr<BatchRing> ring;
  try {
    ring = std::make_unique<BatchRing>(std::move(dataset), std::move(sampler), sequence,
                                       std::move(readers), shape, slots, std::move(probe));
  } catch (const std::bad_alloc&) {
    return no_memory(slots * bytes, sequence.batch_size);
  }
  POSEIDON_RETURN_IF_ERROR(ring->start());
  return ring;
}

}  // namespace

int default_data_threads(int cores) { return std::clamp(cores / 2, 1, 32); }

namespace {

/// How often one iteration may take a sample; a small test set or one that is tried out is repeated
/// a few times.
constexpr std::int64_t kMostRepeats = 16;

absl::Status check_enough_samples(const Dataset& dataset, const BatchPlacement& placement) {
  const std::int64_t wanted = placement.batch_size * placement.workers;
  const std::int64_t there = dataset.size();
  if (wanted / kMostRepeats <= there) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(dataset.name(), ": has ", there, " samples, but one iteration of ", placement.workers,
              " workers x batch_size ", placement.batch_size, " takes ", wanted,
              ", each more than ", kMostRepeats, " times: choose a batch_size of at most ",
              std::max<std::int64_t>(1, there / placement.workers),
              ", with which it takes each once, or more data"));
}

/// A warning about a possible oversight.
void tell_remarks(const Dataset& dataset, std::int64_t classes, const BatchOptions& options) {
  if (!options.log) return;
  for (const std::string& remark : dataset.remarks()) options.log(remark);
  const auto names = static_cast<std::int64_t>(dataset.class_names().size());
  if (names > 0 && names < classes) {
    options.log(str_cat(dataset.name(), ": has ", names, " classes of the ", classes,
                        " that the network tells apart"));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainBatches>> TrainBatches::open(const DataSpec& data,
                                                                 const Shape& input_shape,
                                                                 std::int64_t classes,
                                                                 const BatchPlacement& placement,
                                                                 const BatchOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                            open_dataset(data.train, classes));
  POSEIDON_RETURN_IF_ERROR(check_enough_samples(*dataset, placement));
  tell_remarks(*dataset, classes, options);
  return start(std::move(dataset), data, input_shape, placement, options);
}

absl::Status check_enough_samples(const DataSpec& data, std::int64_t classes,
                                  const BatchPlacement& placement) {
  POSEIDON_ASSIGN_OR_RETURN(const std::shared_ptr<const Dataset> dataset,
                            open_dataset(data.train, classes));
  return check_enough_samples(*dataset, placement);
}

absl::StatusOr<std::unique_ptr<TrainBatches>> TrainBatches::start(
    std::shared_ptr<const Dataset> dataset, const DataSpec& data, const Shape& input_shape,
    const BatchPlacement& placement, const BatchOptions& options) {
  check_placement(placement);
  POSEIDON_ASSIGN_OR_RETURN(const Transform transform, make_transform(*dataset, data, input_shape));
  const std::int64_t iteration_samples = placement.batch_size * placement.workers;
  if (iteration_samples > dataset->size() && placement.rank == 0 && options.log) {
    options.log(str_cat(dataset->name(), ": has ", dataset->size(),
                        " samples, but one iteration of ", placement.workers,
                        " workers x batch_size ", placement.batch_size, " takes ",
                        iteration_samples, ": some are in it more than once"));
  }
  const BatchSequence sequence{
      .phase = Phase::kTrain,
      .batch_size = placement.batch_size,
      .first = placement.samples_before +
               first_position(0, placement.batch_size, placement.workers, placement.rank),
      .stride = static_cast<std::uint64_t>(iteration_samples),
      .pass_samples = 0};
  Sampler sampler(dataset->size(), data.shuffle, data.seed);
  std::vector<SampleReader> readers = make_readers(dataset, data, transform, options);
  POSEIDON_ASSIGN_OR_RETURN(
      std::unique_ptr<BatchRing> ring,
      make_ring(std::move(dataset), std::move(sampler), sequence, std::move(readers),
                transform.output_shape(), kPrefetchBatches, options.probe));
  return std::unique_ptr<TrainBatches>(new TrainBatches(std::move(ring)));
}

TestBatches::TestBatches(std::shared_ptr<const Dataset> dataset, const BatchPlacement& placement)
    : dataset_(std::move(dataset)),
      batch_size_(placement.batch_size),
      begin_(dataset_->size() * placement.rank / placement.workers),
      end_(dataset_->size() * (std::int64_t{placement.rank} + 1) / placement.workers) {}

absl::StatusOr<std::unique_ptr<TestBatches>> TestBatches::open(const DataSpec& data,
                                                               const Shape& input_shape,
                                                               std::int64_t classes,
                                                               const BatchPlacement& placement,
                                                               const BatchOptions& options) {
  POSEIDON_CHECK(data.test.has_value(), "the job has no test data");
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                            open_dataset(*data.test, classes));
  if (!dataset->class_names().empty()) {
    POSEIDON_ASSIGN_OR_RETURN(const std::vector<std::string> names, class_names_of(data.train));
    POSEIDON_RETURN_IF_ERROR(check_same_classes(names, dataset->class_names()));
  }
  tell_remarks(*dataset, classes, options);
  return start(std::move(dataset), data, input_shape, placement, options);
}

absl::StatusOr<std::unique_ptr<TestBatches>> TestBatches::start(
    std::shared_ptr<const Dataset> dataset, const DataSpec& data, const Shape& input_shape,
    const BatchPlacement& placement, const BatchOptions& options) {
  check_placement(placement);
  POSEIDON_ASSIGN_OR_RETURN(const Transform transform, make_transform(*dataset, data, input_shape));
  std::unique_ptr<TestBatches> batches(new TestBatches(std::move(dataset), placement));
  if (batches->samples() == 0) return batches;
  BatchOptions used = options;
  if (batches->dataset_->sample_shape()[0] != 0) used.threads = 1;  // pixels need no decoding
  const BatchSequence sequence{.phase = Phase::kTest,
                               .batch_size = placement.batch_size,
                               .first = static_cast<std::uint64_t>(batches->begin_),
                               .stride = static_cast<std::uint64_t>(placement.batch_size),
                               .pass_samples = batches->samples()};
  POSEIDON_ASSIGN_OR_RETURN(
      batches->ring_,
      make_ring(batches->dataset_, Sampler(batches->dataset_->size(), /*shuffle=*/false, data.seed),
                sequence, make_readers(batches->dataset_, data, transform, used),
                transform.output_shape(), kPrefetchTestBatches, /*probe=*/nullptr));
  return batches;
}

std::int64_t TestBatches::batches() const { return (samples() + batch_size_ - 1) / batch_size_; }

absl::StatusOr<const Batch*> TestBatches::next(Milliseconds timeout) {
  POSEIDON_CHECK(ring_ != nullptr, "a worker without test samples has no batch");
  return ring_->next(timeout);
}

}  // namespace poseidon
