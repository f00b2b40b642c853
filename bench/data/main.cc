// poseidon-bench-data: runs the input pipeline alone, as a worker does, and reports its speed.

#include <chrono>
#include <cstdio>
#include <limits>
#include <string>

#include "CLI/CLI.hpp"
#include "worker/data/feed/batches.h"

namespace poseidon {
namespace {

constexpr Milliseconds kPatience{60'000};
constexpr std::int64_t kBatch = 20;

struct Options {
  DataSourceSpec source;
  std::int64_t samples = 400;
  int threads = 1;
  std::int64_t size = 224;
};

/// ImageNet's usual training transform.
DataSpec data_of(const Options& options) {
  DataSpec data;
  data.train = options.source;
  data.transform.random_resized_crop.emplace().size = {options.size, options.size};
  data.transform.mirror = true;
  data.transform.mean = {123.675, 116.28, 103.53};
  data.transform.deviation = {58.395, 57.12, 57.375};
  return data;
}

absl::Status run(const Options& options) {
  auto dataset = open_dataset(options.source, std::numeric_limits<std::int32_t>::max());
  if (!dataset.ok()) return dataset.status();
  const BatchPlacement placement{.workers = 1, .rank = 0, .batch_size = kBatch};
  const auto start = std::chrono::steady_clock::now();
  auto batches =
      TrainBatches::start(*std::move(dataset), data_of(options), {3, options.size, options.size},
                          placement, {.threads = options.threads});
  if (!batches.ok()) return batches.status();
  for (std::int64_t done = 0; done < options.samples; done += kBatch) {
    const auto batch = (*batches)->next(kPatience);
    if (!batch.ok()) return batch.status();
  }
  // There is no computing here, so the threads are never far ahead of the taken batches.
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("{\"samples\": %lld, \"threads\": %d, \"seconds\": %.6f, \"samples_per_s\": %.1f}\n",
              static_cast<long long>(options.samples), options.threads, seconds.count(),
              static_cast<double>(options.samples) / seconds.count());
  return absl::OkStatus();
}

}  // namespace
}  // namespace poseidon

int main(int argc, char** argv) {
  CLI::App app("Measures the input pipeline: samples ready for a network, per second.",
               "poseidon-bench-data");
  poseidon::Options options;
  app.add_option("--format", options.source.format, "image_folder or records")->required();
  app.add_option("--path", options.source.path, "the folder")->required();
  app.add_option("--samples", options.samples, "a multiple of 20")->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads)->check(CLI::Range(1, poseidon::kMaxDataThreads));
  app.add_option("--size", options.size, "of the crop")->check(CLI::Range(1, 4096));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = poseidon::run(options);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
