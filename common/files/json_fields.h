#pragma once

// Strict reading of JSON that people write: duplicate and unknown keys, wrong types and numbers out
// of range are all refused, by path. Pure; never throws.
//
// Called by: readers of job files, network files, safetensors headers and records. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace poseidon {

struct JsonLimits {
  std::size_t max_bytes = 4 << 20;
  std::size_t max_depth = 32;  ///< arrays and objects inside each other
};

/// Parses one JSON value within the limits. Duplicate keys are refused (most parsers keep the last
/// of them silently). Every error starts with `source`, e.g. "job file".
absl::StatusOr<nlohmann::json> parse_json(std::string_view text, std::string_view source,
                                          const JsonLimits& limits = {});

/// The value as in the file, shortened, for messages.
std::string json_excerpt(const nlohmann::json& value);

/// Bounds of a number; messages say "from 0 to 1", "at least 1", "from 0 to less than 1".
struct NumberRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  bool max_excluded = false;
};

/// Reads the fields of one JSON object into variables and keeps the first error:
///
///   JsonFields fields(json, "job file", "optimizer");
///   fields.number("momentum", &spec.momentum, {.min = 0, .max = 1, .max_excluded = true});
///   return fields.finish();
///
/// A getter leaves its variable as it was when the key is absent or wrong; an absent key is an
/// error only if it was named in `require`. finish() refuses keys that no getter asked for and
/// suggests the nearest known name. It reports these first, because a misspelt key explains why
/// another is missing. The JSON value must outlive this object. One thread.
class JsonFields {
 public:
  /// `path` is the object's place in the file, "" for the whole; messages read "<source>:
  /// <path>.<key>: expected ..., got ...". A value that is not an object is the first error.
  JsonFields(const nlohmann::json& value, std::string_view source, std::string_view path);

  bool has(std::string_view key) const;
  /// Must be present (null does not count as absent: it is a value of a wrong type). The message of
  /// a refusal names a key that may have been meant for it.
  void require(std::string_view key);

  void boolean(std::string_view key, bool* out);
  void number(std::string_view key, double* out, const NumberRange& range = {});
  /// Written as an integer: 1.0 and "1" are refused.
  void integer(std::string_view key, std::int64_t* out, std::int64_t min, std::int64_t max);
  void unsigned_integer(std::string_view key, std::uint64_t* out);  ///< 0 to 2^64 - 1
  /// Two sizes of an image: one integer for both, or [height, width].
  void height_width(std::string_view key, std::int64_t* height, std::int64_t* width,
                    std::int64_t min, std::int64_t max);
  /// Not empty and at most kMaxStringBytes long.
  void string(std::string_view key, std::string* out);
  /// Arrays of `min_size` to `max_size` elements, each as above.
  void integers(std::string_view key, std::vector<std::int64_t>* out, std::int64_t min,
                std::int64_t max, std::size_t min_size, std::size_t max_size);
  void numbers(std::string_view key, std::vector<double>* out, const NumberRange& range,
               std::size_t min_size, std::size_t max_size);
  void strings(std::string_view key, std::vector<std::string>* out, std::size_t min_size,
               std::size_t max_size);
  /// One of `names`; the message of a refusal lists them, and suggests the nearest.
  void one_of(std::string_view key, std::string* out, const std::vector<std::string>& names);
  /// The value itself, or nullptr when absent: for nested objects and unions.
  const nlohmann::json* value(std::string_view key);
  /// The array of `min_size` to `max_size` `of_what` ("layers") itself, or nullptr when absent or
  /// refused.
  const nlohmann::json* array(std::string_view key, std::string_view of_what, std::size_t min_size,
                              std::size_t max_size);

  /// Remembers an error about `key` found by the caller: "<path>.<key>: <message>".
  void refuse(std::string_view key, std::string_view message);
  /// Refuses each of `keys` that is present, because it would be ignored: it `belongs_to` another
  /// alternative ("format \"idx\"") than the `chosen` one.
  void refuse_foreign(const std::vector<std::string>& keys, std::string_view belongs_to,
                      std::string_view chosen);
  /// As refuse, about the object as a whole: "<source>: <path>: <message>".
  void refuse(std::string_view message);
  /// Remembers the error of a nested reader, whose message is complete.
  void add(const absl::Status& status);

  /// "optimizer.momentum"
  std::string path_of(std::string_view key) const;
  const std::string& source() const { return source_; }

  /// The first error so far, for readers that must stop at one. Does not report unknown keys.
  const absl::Status& status() const { return first_error_; }
  bool ok() const { return first_error_.ok(); }
  /// An unknown key, else the first error, else OK.
  absl::Status finish() const;

  static constexpr std::size_t kMaxStringBytes = 4096;

 private:
  const nlohmann::json* find(std::string_view key);
  void expected(std::string_view where, std::string_view what, const nlohmann::json& got);
  bool read_number(const nlohmann::json& json, std::string_view where, const NumberRange& range,
                   double* out);
  bool read_integer(const nlohmann::json& json, std::string_view where, std::int64_t min,
                    std::int64_t max, std::int64_t* out);
  bool read_string(const nlohmann::json& json, std::string_view where, std::string* out);

  const nlohmann::json* object_;  ///< nullptr when the value was no object
  std::string source_;
  std::string path_;
  std::vector<std::string> known_;
  absl::Status first_error_;
};

/// `object` as text, one member a line, with a member "checksum" before all others (zlib's CRC-32).
/// Deleting that line gives a valid document without a checksum. `object` must not be empty or have
/// such a member.
std::string checked_json(const nlohmann::ordered_json& object);

/// The document without its checksum. DATA_LOSS, naming both sums, when the content does not match.
/// A document without a checksum (from an earlier version, or edited) is accepted. Other errors as
/// parse_json.
absl::StatusOr<nlohmann::json> parse_checked_json(std::string_view text, std::string_view source,
                                                  const JsonLimits& limits = {});

}  // namespace poseidon
