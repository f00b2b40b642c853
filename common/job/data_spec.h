#pragma once

// The job file's "data" section: where samples come from and how they are transformed before the
// network. Pure.
//
// Called by: common/job/job.h, which reads the file, and worker/data. Calls:
// common/files/json_fields.h.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

/// A crop of random size and place, resized to one size; training only.
struct RandomResizedCropSpec {
  std::vector<std::int64_t> size;               ///< [height, width] of the result
  std::vector<double> scale = {0.08, 1.0};      ///< least and greatest share of the image's area
  std::vector<double> ratio = {0.75, 4.0 / 3};  ///< least and greatest width / height
};

/// Random colours; training only. Each a strength, 0: off. docs/sampling.md says what they do.
struct ColourSpec {
  double brightness = 0.0;
  double contrast = 0.0;
  double saturation = 0.0;
  double hue = 0.0;       ///< up to 0.5
  double lighting = 0.0;  ///< deviation of AlexNet's shift along the principal colours
  bool is_on() const {
    return brightness != 0 || contrast != 0 || saturation != 0 || hue != 0 || lighting != 0;
  }
};

/// The transformations between file and network, in this order.
struct TransformSpec {
  std::vector<std::int64_t> resize;  ///< [height, width], bilinear; empty: as it is
  /// Resizes the shorter side to this length, with antialiasing; 0: off. Together with
  /// random_resized_crop it applies in tests only.
  std::int64_t resize_shorter = 0;
  std::optional<RandomResizedCropSpec> random_resized_crop;  ///< in tests: shorter side, centre
  std::int64_t pad = 0;                   ///< zero pixels on every side before random_crop
  std::vector<std::int64_t> random_crop;  ///< [height, width]; training only (centre crop in tests)
  bool mirror = false;                    ///< horizontal flip with probability 1/2; training only
  ColourSpec colour;
  std::vector<double> mean;  ///< subtracted, in file units; one value or one per channel
  std::vector<double>
      deviation;       ///< "std": divided by, in file units; one value or one per channel
  double scale = 1.0;  ///< multiplied last
};

/// Where samples come from. Relative paths are relative to the job file's folder until the
/// command line tool makes them absolute.
struct DataSourceSpec {
  std::string format;              ///< idx, cifar10, cifar100, image_folder or records
  std::string images;              ///< idx
  std::string labels;              ///< idx
  std::vector<std::string> files;  ///< cifar10: data_batch_1.bin ...; cifar100: train.bin
  std::string label_kind;          ///< cifar100: "fine" or "coarse"
  std::string path;                ///< image_folder, records: the folder
};

struct DataSpec {
  DataSourceSpec train;
  std::optional<DataSourceSpec> test;
  bool shuffle = true;
  std::uint64_t seed = 1;
  /// Share of a set's samples that may be unreadable (another stands in) before the run stops.
  double max_corrupt_share = 0.01;
  TransformSpec transform;
};

/// Parses and checks `json`, the value of "data" in `source`. Errors as parse_job.
absl::Status parse_data_spec(const nlohmann::json& json, std::string_view source, DataSpec& spec);

/// The inverse.
nlohmann::json data_spec_to_json(const DataSpec& spec);

/// Makes every relative path absolute against `folder`.
void resolve_paths(DataSpec& spec, const std::filesystem::path& folder);

}  // namespace poseidon
