#include "cli/commands/data_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/terminal/progress.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/nearest.h"
#include "common/base/process_load.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "worker/data/feed/batches.h"
#include "worker/data/formats/pack.h"
#include "worker/data/formats/records_dataset.h"

namespace poseidon {
namespace {

const std::vector<std::string>& formats() {
  static const std::vector<std::string> kFormats = {"idx", "cifar10", "cifar100", "image_folder",
                                                    "records"};
  return kFormats;
}

absl::StatusOr<std::string> format_of(const DataSourceOptions& options) {
  if (!options.format.empty()) {
    for (const std::string& format : formats()) {
      if (format == options.format) return format;
    }
    return absl::InvalidArgumentError(absl::StrCat("--format ", options.format, ": no such format",
                                                   did_you_mean(options.format, formats()),
                                                   "; known: ", absl::StrJoin(formats(), ", ")));
  }
  const std::filesystem::path source = options.sources.front();
  std::error_code error;
  const bool is_there = std::filesystem::exists(source, error);
  if (error) return system_error(source, "cannot be inspected", error.value());
  if (!is_there) {
    return absl::NotFoundError(absl::StrCat(source.string(), ": no such file or folder"));
  }
  if (std::filesystem::is_directory(source, error)) {
    const bool is_packed = std::filesystem::exists(source / shard_name(0), error);
    return std::string(is_packed ? "records" : "image_folder");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      source.string(), ": is a file; name its format with --format idx, cifar10 or cifar100"));
}

int threads_of(const DataSourceOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::clamp(usable_cores(), 1, kMaxDataThreads);
}

absl::StatusOr<std::shared_ptr<const Dataset>> open_source(const DataSourceOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const DataSourceSpec source, source_of(options));
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                            open_dataset(source, std::numeric_limits<std::int32_t>::max()));
  for (const std::string& remark : dataset->remarks()) {
    std::fprintf(stderr, "note: %s\n", printable(remark).c_str());
  }
  return dataset;
}

/// Interval of progress reports.
constexpr std::chrono::seconds kVisitPause{10};

/// Samples that cannot be read go to standard output, progress to standard error.
VisitEvents print_visit(std::int64_t samples) {
  const auto unreadable = [](const std::string& name, const std::string& reason) {
    std::printf("cannot be read: %s: %s\n", printable(name).c_str(), printable(reason).c_str());
  };
  const SystemClock clock;
  const auto visited = [clock, samples, start = clock.now(),
                        told = clock.now()](std::int64_t done) mutable {
    const Nanoseconds now = clock.now();
    if (now - told < kVisitPause || done == samples) return;
    told = now;
    std::fprintf(stderr, "%s\n", visit_progress(done, samples, seconds(now - start)).c_str());
  };
  return {.unreadable = unreadable, .visited = visited};
}

}  // namespace

absl::StatusOr<DataSourceSpec> source_of(const DataSourceOptions& options) {
  if (options.sources.empty()) return absl::InvalidArgumentError("name a source");
  DataSourceSpec source;
  POSEIDON_ASSIGN_OR_RETURN(source.format, format_of(options));
  if (!options.labels.empty() && source.format != "cifar100") {
    return absl::InvalidArgumentError(
        absl::StrCat("--labels: belongs to --format cifar100, not to ", source.format));
  }
  const std::size_t count = options.sources.size();
  if (source.format == "cifar10" || source.format == "cifar100") {
    source.files = options.sources;
    source.label_kind = options.labels.empty() ? "fine" : options.labels;
    if (source.label_kind != "fine" && source.label_kind != "coarse") {
      return absl::InvalidArgumentError(
          absl::StrCat("--labels ", options.labels, ": expected fine or coarse"));
    }
  } else if (source.format == "idx") {
    if (count != 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--format idx: expected two sources, the images and the labels, got ", count));
    }
    source.images = options.sources[0];
    source.labels = options.sources[1];
  } else {
    if (count != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--format ", source.format, ": expected one folder, got ", count));
    }
    source.path = options.sources.front();
  }
  return source;
}

std::string visit_progress(std::int64_t done, std::int64_t samples, double seconds) {
  const double share = static_cast<double>(done) / static_cast<double>(samples);
  return absl::StrFormat("%s of %s samples (%.0f %%), %s/s, %s to go", format_count(done),
                         format_count(samples), 100 * share,
                         format_count(std::llround(static_cast<double>(done) / seconds)),
                         format_duration(seconds * (1 - share) / share));
}

absl::Status run_data_pack(const DataPackOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const auto dataset, open_source(options.source));
  const PackOptions pack{.shards = options.shards,
                         .shard_bytes = options.shard_bytes,
                         .threads = threads_of(options.source),
                         .max_corrupt_share = options.max_corrupt_share};
  POSEIDON_ASSIGN_OR_RETURN(const PackReport report,
                            pack_records(*dataset, options.to, pack, print_visit(dataset->size())));
  std::printf("%s: %lld samples, %llu bytes, %lld shards; %lld left out\n", options.to.c_str(),
              static_cast<long long>(report.samples.good),
              static_cast<unsigned long long>(report.bytes), static_cast<long long>(report.shards),
              static_cast<long long>(report.samples.unreadable));
  return absl::OkStatus();
}

absl::Status run_data_check(const DataSourceOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const auto dataset, open_source(options));
  POSEIDON_ASSIGN_OR_RETURN(const SampleCounts counts, check_samples(*dataset, threads_of(options),
                                                                     print_visit(dataset->size())));
  std::printf("%s: %lld samples are good, %lld cannot be read\n", dataset->name().c_str(),
              static_cast<long long>(counts.good), static_cast<long long>(counts.unreadable));
  if (counts.unreadable == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(dataset->name(), ": ", counts.unreadable, " of ",
                                          dataset->size(), " samples cannot be read"));
}

}  // namespace poseidon
