#include "worker/data/formats/pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "common/base/check.h"
#include "common/base/text.h"
#include "worker/data/formats/helper_threads.h"
#include "worker/data/formats/records_writer.h"
#include "worker/data/images/image_decoder.h"

namespace poseidon {
namespace {

/// Samples in memory at once, per thread.
constexpr std::int64_t kWindowSamples = 16;

struct ReadSample {
  EncodedSample sample;
  absl::Status status;
};

/// Reads a sample and decodes all of it, as training would.
absl::Status read_and_decode(const Dataset& dataset, std::int64_t index, EncodedSample& sample,
                             ImageDecoder& decoder, Image& image) {
  POSEIDON_RETURN_IF_ERROR(dataset.read(index, sample));
  if (sample.encoding == Encoding::kPixels) return absl::OkStatus();
  POSEIDON_ASSIGN_OR_RETURN(const ImageSize size, decoder.open(sample.bytes));
  return decoder.decode({.top = 0, .left = 0, .height = size.height, .width = size.width}, 3,
                        image);
}

/// Calls `visit` for every sample in index order, with the result of read_and_decode.
absl::Status visit_samples(
    const Dataset& dataset, int threads, const VisitEvents& events,
    const std::function<absl::Status(std::int64_t, const ReadSample&)>& visit) {
  POSEIDON_CHECK(threads >= 1, "threads");
  std::vector<ReadSample> window(static_cast<std::size_t>(kWindowSamples * threads));
  std::vector<ImageDecoder> decoders(static_cast<std::size_t>(threads));
  std::vector<Image> images(static_cast<std::size_t>(threads));
  const auto step = static_cast<std::int64_t>(window.size());
  for (std::int64_t begin = 0; begin < dataset.size(); begin += step) {
    const std::int64_t end = std::min(dataset.size(), begin + step);
    std::atomic<std::int64_t> next{begin};
    const auto work = [&](std::size_t thread) {
      for (std::int64_t i = next++; i < end; i = next++) {
        ReadSample& read = window[static_cast<std::size_t>(i - begin)];
        read.status = read_and_decode(dataset, i, read.sample, decoders[thread], images[thread]);
      }
    };
    work_with_helpers(decoders.size(), work);
    for (std::int64_t i = begin; i < end; ++i) {
      POSEIDON_RETURN_IF_ERROR(visit(i, window[static_cast<std::size_t>(i - begin)]));
    }
    if (events.visited) events.visited(end);
  }
  return absl::OkStatus();
}

/// Counts an unreadable sample and continues; errors of the machine end the packing.
absl::Status note_unreadable(const Dataset& dataset, std::int64_t index, const absl::Status& status,
                             const VisitEvents& events, SampleCounts& counts) {
  const std::string name = dataset.sample_name(index);
  if (!is_unreadable(status)) {
    return absl::Status(status.code(), str_cat(name, ": ", from_absl(status.message())));
  }
  ++counts.unreadable;
  if (events.unreadable) events.unreadable(name, std::string(status.message()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SampleCounts> check_samples(const Dataset& dataset, int threads,
                                           const VisitEvents& events) {
  SampleCounts counts;
  const auto count = [&](std::int64_t index, const ReadSample& read) {
    if (!read.status.ok()) return note_unreadable(dataset, index, read.status, events, counts);
    ++counts.good;
    return absl::OkStatus();
  };
  POSEIDON_RETURN_IF_ERROR(visit_samples(dataset, threads, events, count));
  return counts;
}

std::uint64_t shard_limit(std::uint64_t shard_bytes, std::int64_t shard) {
  constexpr std::int64_t kEqual = kMaxShards / 2;
  constexpr std::int64_t kPerDoubling = 32;
  const std::int64_t doublings = shard < kEqual ? 0 : (shard - kEqual) / kPerDoubling + 1;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  return shard_bytes > (kMost >> doublings) ? kMost : shard_bytes << doublings;
}

absl::StatusOr<PackReport> pack_records(const Dataset& dataset, const std::filesystem::path& folder,
                                        const PackOptions& options, const VisitEvents& events) {
  if (options.shards < 0 || options.shards > std::min(kMaxShards, dataset.size())) {
    return absl::InvalidArgumentError(str_cat("--shards ", options.shards, ": expected 1 to ",
                                              std::min(kMaxShards, dataset.size()), " for ",
                                              dataset.size(), " samples"));
  }
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<RecordsWriter> writer,
                            RecordsWriter::create(folder));
  const auto limit = static_cast<std::int64_t>(
      std::ceil(options.max_corrupt_share * static_cast<double>(dataset.size())));
  PackReport report;
  const auto begins_shard = [&](std::int64_t index) {
    if (writer->shards() == 0) return true;
    if (options.shards == 0) {
      return writer->shard_bytes() >= shard_limit(options.shard_bytes, writer->shards() - 1);
    }
    // Exact in 128 bits is not needed: a set has less than 2^32 samples, a pack less than 2^9
    // shards.
    return index * options.shards / dataset.size() >= writer->shards();
  };
  const auto write = [&](std::int64_t index, const ReadSample& read) -> absl::Status {
    // Also when a sample is left out, so that every requested shard exists.
    if (begins_shard(index)) POSEIDON_RETURN_IF_ERROR(writer->begin_shard());
    if (read.status.ok()) return writer->add(read.sample);
    POSEIDON_RETURN_IF_ERROR(note_unreadable(dataset, index, read.status, events, report.samples));
    if (report.samples.unreadable <= limit) return absl::OkStatus();
    return absl::DataLossError(str_cat(dataset.name(), ": more than ", limit, " of ",
                                       dataset.size(),
                                       " samples cannot be read; nothing was packed. Repair the "
                                       "data, or allow more with --max-corrupt-share"));
  };
  POSEIDON_RETURN_IF_ERROR(visit_samples(dataset, options.threads, events, write));
  report.samples.good = writer->samples();
  if (report.samples.good == 0) {
    return absl::DataLossError(str_cat(dataset.name(), ": not one sample can be read"));
  }
  POSEIDON_RETURN_IF_ERROR(writer->finish(dataset.sample_shape(), dataset.class_names()));
  report.shards = writer->shards();
  report.bytes = writer->bytes();
  return report;
}

}  // namespace poseidon
