#pragma once

// The strict reader of network files: every key is asked for by name, type and range; what was not
// asked for is refused with the nearest known name. Pure; used by net_parse.cc alone.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/json_fields.h"
#include "nlohmann/json.hpp"

namespace poseidon {

/// Reads the keys of one JSON object. The first error is kept, later reads return defaults;
/// finish() hands it out. The object must outlive the reader.
class FieldReader {
 public:
  /// `where` opens every message: "network 'lenet': layer 'conv1'".
  FieldReader(const nlohmann::json& object, std::string where);

  /// Absent and no default: an error.
  std::string string(const std::string& key, std::optional<std::string> fallback = std::nullopt);
  std::int64_t integer(const std::string& key, std::int64_t min, std::int64_t max,
                       std::optional<std::int64_t> fallback = std::nullopt);
  /// One integer for both, or [height, width].
  std::pair<std::int64_t, std::int64_t> pair(
      const std::string& key, std::int64_t min, std::int64_t max,
      std::optional<std::pair<std::int64_t, std::int64_t>> fallback = std::nullopt);
  double number(const std::string& key, double min, double max, double fallback);
  bool boolean(const std::string& key, bool fallback);
  std::vector<std::string> strings(const std::string& key);
  /// A list of `min_count` to `max_count` integers.
  std::vector<std::int64_t> integers(const std::string& key, std::size_t min_count,
                                     std::size_t max_count, std::int64_t min, std::int64_t max);
  /// nullptr when absent.
  const nlohmann::json* object(const std::string& key);
  /// nullptr (and an error) when absent.
  const nlohmann::json* array(const std::string& key);

  /// Keeps `message` as the error unless there is one already.
  void fail(const std::string& message);
  bool ok() const { return status_.ok(); }
  void set_where(std::string where) { where_ = std::move(where); }
  const std::string& where() const { return where_; }
  /// The first error; else the first unknown key; else OK.
  absl::Status finish();

 private:
  const nlohmann::json* find(const std::string& key, bool required);
  void wrong(const std::string& key, const std::string& wanted, const nlohmann::json& got);

  const nlohmann::json& object_;
  std::string where_;
  std::vector<std::string> known_;
  absl::Status status_;
};

}  // namespace poseidon
