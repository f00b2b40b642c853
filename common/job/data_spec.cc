#include "common/job/data_spec.h"

#include <algorithm>
#include <cmath>

#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/files/json_fields.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxPixels = 4096;  ///< height or width of an image
constexpr std::size_t kMaxChannels = 1024;
constexpr std::size_t kMaxDataFiles = 10'000;

absl::Status parse_source(const Json& json, std::string_view source, const std::string& path,
                          DataSourceSpec& spec) {
  JsonFields fields(json, source, path);
  fields.require("format");
  fields.one_of("format", &spec.format, {"idx", "cifar10", "cifar100", "image_folder", "records"});
  const std::string idx = "format \"idx\"";
  const std::string cifar = "the formats \"cifar10\" and \"cifar100\"";
  const std::string folders = "the formats \"image_folder\" and \"records\"";
  if (spec.format == "cifar10" || spec.format == "cifar100") {
    fields.require("files");
    fields.strings("files", &spec.files, 1, kMaxDataFiles);
    fields.refuse_foreign({"images"}, idx, spec.format);
    fields.refuse_foreign({"path"}, folders, spec.format);
    if (spec.format == "cifar100") {
      spec.label_kind = "fine";
      fields.one_of("labels", &spec.label_kind, {"fine", "coarse"});
    } else {
      fields.refuse_foreign({"labels"}, "the formats \"idx\" and \"cifar100\"", spec.format);
    }
  } else if (spec.format == "idx") {
    fields.require("images");
    fields.require("labels");
    fields.string("images", &spec.images);
    fields.string("labels", &spec.labels);
    fields.refuse_foreign({"files"}, cifar, spec.format);
    fields.refuse_foreign({"path"}, folders, spec.format);
  } else if (!spec.format.empty()) {
    fields.require("path");
    fields.string("path", &spec.path);
    fields.refuse_foreign({"images"}, idx, spec.format);
    fields.refuse_foreign({"labels"}, "the formats \"idx\" and \"cifar100\"", spec.format);
    fields.refuse_foreign({"files"}, cifar, spec.format);
  } else {
    for (const char* key : {"images", "labels", "files", "path"}) fields.value(key);
  }
  return fields.finish();
}

/// [least, greatest], both within `range`.
void parse_span(JsonFields& fields, std::string_view key, const NumberRange& range,
                std::vector<double>& spec) {
  fields.numbers(key, &spec, range, 2, 2);
  if (spec[0] > spec[1]) {
    fields.refuse(key, str_cat("expected [least, greatest], got ", json_excerpt(Json(spec))));
  }
}

absl::Status parse_resized_crop(const Json& json, std::string_view source, const std::string& path,
                                RandomResizedCropSpec& spec) {
  JsonFields fields(json, source, path);
  fields.require("size");
  fields.integers("size", &spec.size, 1, kMaxPixels, 2, 2);
  parse_span(fields, "scale", {.min = 1e-6, .max = 1.0}, spec.scale);
  parse_span(fields, "ratio", {.min = 1e-3, .max = 1e3}, spec.ratio);
  return fields.finish();
}

absl::Status parse_colour(const Json& json, std::string_view source, const std::string& path,
                          ColourSpec& spec) {
  JsonFields fields(json, source, path);
  const NumberRange strength = {.min = 0.0, .max = 10.0};
  fields.number("brightness", &spec.brightness, strength);
  fields.number("contrast", &spec.contrast, strength);
  fields.number("saturation", &spec.saturation, strength);
  fields.number("hue", &spec.hue, {.min = 0.0, .max = 0.5});
  return fields.finish();
}

/// One number for all channels, or one for each.
void parse_per_channel(JsonFields& fields, const char* key, const NumberRange& range,
                       std::vector<double>& spec) {
  if (const Json* value = fields.value(key); value != nullptr && value->is_number()) {
    spec.resize(1);
    fields.number(key, spec.data(), range);
  } else {
    fields.numbers(key, &spec, range, 1, kMaxChannels);
  }
}

/// What would exclude each other, or leave an image too small for the cut.
void check_geometry(JsonFields& fields, const TransformSpec& spec) {
  if (!spec.resize.empty() && spec.resize_shorter != 0) {
    fields.refuse("resize_shorter", "cannot be combined with resize: one of them sets the size");
  }
  if (!spec.random_resized_crop) return;
  for (const char* key : {"resize", "pad", "random_crop"}) {
    if (!fields.has(key)) continue;
    fields.refuse(key, "cannot be combined with random_resized_crop, which sets size and place");
  }
  if (spec.resize_shorter == 0 || spec.random_resized_crop->size.empty()) return;
  const std::int64_t needed =
      std::max(spec.random_resized_crop->size[0], spec.random_resized_crop->size[1]);
  if (spec.resize_shorter < needed) {
    fields.refuse("resize_shorter",
                  str_cat("expected at least ", needed,
                          ", the side of random_resized_crop.size, got ", spec.resize_shorter));
  }
}

absl::Status parse_transform(const Json& json, std::string_view source, const std::string& path,
                             TransformSpec& spec) {
  JsonFields fields(json, source, path);
  fields.integers("resize", &spec.resize, 1, kMaxPixels, 2, 2);
  fields.integer("resize_shorter", &spec.resize_shorter, 1, kMaxPixels);
  if (const Json* crop = fields.value("random_resized_crop")) {
    fields.add(parse_resized_crop(*crop, source, fields.path_of("random_resized_crop"),
                                  spec.random_resized_crop.emplace()));
  }
  fields.integer("pad", &spec.pad, 0, kMaxPixels);
  fields.integers("random_crop", &spec.random_crop, 1, kMaxPixels, 2, 2);
  fields.boolean("mirror", &spec.mirror);
  if (const Json* colour = fields.value("color_jitter")) {
    fields.add(parse_colour(*colour, source, fields.path_of("color_jitter"), spec.colour));
  }
  fields.number("lighting", &spec.colour.lighting, {.min = 0.0, .max = 10.0});
  // Float32 must be able to hold them, and the values divided by std.
  parse_per_channel(fields, "mean", {.min = -1e30, .max = 1e30}, spec.mean);
  parse_per_channel(fields, "std", {.min = 1e-30, .max = 1e30}, spec.deviation);
  fields.number("scale", &spec.scale);
  // Anything that rounds to zero or infinity in float32 would wipe out every pixel.
  for (std::size_t i = 0; i < std::max<std::size_t>(1, spec.deviation.size()); ++i) {
    const auto factor =
        static_cast<float>(spec.deviation.empty() ? spec.scale : spec.scale / spec.deviation[i]);
    if (factor != 0.0f && std::isfinite(factor)) continue;
    fields.refuse("scale", str_cat("expected a number other than 0 that float32 can hold",
                                   spec.deviation.empty() ? "" : " when divided by std", ", got ",
                                   json_excerpt(Json(spec.scale))));
  }
  check_geometry(fields, spec);
  return fields.finish();
}

void resolve(DataSourceSpec& source, const std::filesystem::path& folder) {
  resolve_path(source.images, folder);
  resolve_path(source.labels, folder);
  resolve_path(source.path, folder);
  for (std::string& file : source.files) resolve_path(file, folder);
}

Json source_to_json(const DataSourceSpec& source) {
  if (source.format == "cifar10") return {{"format", source.format}, {"files", source.files}};
  if (source.format == "cifar100") {
    return {{"format", source.format}, {"files", source.files}, {"labels", source.label_kind}};
  }
  if (source.format != "idx") return {{"format", source.format}, {"path", source.path}};
  return {{"format", source.format}, {"images", source.images}, {"labels", source.labels}};
}

Json transform_to_json(const TransformSpec& from) {
  Json json = {{"pad", from.pad}, {"mirror", from.mirror}, {"scale", from.scale}};
  if (!from.resize.empty()) json["resize"] = from.resize;
  if (from.resize_shorter != 0) json["resize_shorter"] = from.resize_shorter;
  if (!from.random_crop.empty()) json["random_crop"] = from.random_crop;
  if (const auto& crop = from.random_resized_crop) {
    json["random_resized_crop"] = {
        {"size", crop->size}, {"scale", crop->scale}, {"ratio", crop->ratio}};
    json.erase("pad");
  }
  if (from.colour.is_on()) {
    json["color_jitter"] = {{"brightness", from.colour.brightness},
                            {"contrast", from.colour.contrast},
                            {"saturation", from.colour.saturation},
                            {"hue", from.colour.hue}};
    json["lighting"] = from.colour.lighting;
  }
  if (!from.mean.empty()) json["mean"] = from.mean;
  if (!from.deviation.empty()) json["std"] = from.deviation;
  return json;
}

}  // namespace

absl::Status parse_data_spec(const Json& json, std::string_view source, DataSpec& spec) {
  JsonFields fields(json, source, "data");
  fields.require("train");
  if (const Json* train = fields.value("train")) {
    fields.add(parse_source(*train, source, "data.train", spec.train));
  }
  if (const Json* test = fields.value("test")) {
    fields.add(parse_source(*test, source, "data.test", spec.test.emplace()));
  }
  fields.boolean("shuffle", &spec.shuffle);
  fields.unsigned_integer("seed", &spec.seed);
  fields.number("max_corrupt_share", &spec.max_corrupt_share, {.min = 0.0, .max = 1.0});
  if (const Json* transform = fields.value("transform")) {
    fields.add(parse_transform(*transform, source, "data.transform", spec.transform));
  }
  return fields.finish();
}

Json data_spec_to_json(const DataSpec& data) {
  Json json = {{"train", source_to_json(data.train)},
               {"shuffle", data.shuffle},
               {"seed", data.seed},
               {"max_corrupt_share", data.max_corrupt_share},
               {"transform", transform_to_json(data.transform)}};
  if (data.test) json["test"] = source_to_json(*data.test);
  return json;
}

void resolve_paths(DataSpec& spec, const std::filesystem::path& folder) {
  resolve(spec.train, folder);
  if (spec.test) resolve(*spec.test, folder);
}

}  // namespace poseidon
