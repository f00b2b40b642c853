#include "worker/engine/net_json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/nearest.h"

namespace poseidon {
namespace {

// nlohmann keeps non-negative integers as unsigned: what does not fit into int64 is no size.
std::optional<std::int64_t> as_integer(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return std::nullopt;
    }
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::nullopt;
}

std::optional<std::int64_t> integer_within(const nlohmann::json& value, std::int64_t min,
                                           std::int64_t max) {
  const std::optional<std::int64_t> number = as_integer(value);
  if (!number || *number < min || *number > max) return std::nullopt;
  return number;
}

}  // namespace

FieldReader::FieldReader(const nlohmann::json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) fail(absl::StrCat("must be an object, got ", json_excerpt(object_)));
}

void FieldReader::fail(const std::string& message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", message));
}

void FieldReader::wrong(const std::string& key, const std::string& wanted,
                        const nlohmann::json& got) {
  fail(absl::StrCat("\"", key, "\" must be ", wanted, ", got ", json_excerpt(got)));
}

const nlohmann::json* FieldReader::find(const std::string& key, bool required) {
  known_.emplace_back(key);
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(key);
  if (it != object_.end()) return &*it;
  if (required) {
    // A misspelt key explains a missing one better than its absence does.
    if (status_.ok()) {
      for (const auto& item : object_.items()) {
        if (nearest_name(item.key(), known_) == key) {
          fail(absl::StrCat("unknown key \"", item.key(), "\" (did you mean \"", key, "\"?)"));
        }
      }
    }
    fail(absl::StrCat("\"", key, "\" is missing"));
  }
  return nullptr;
}

std::string FieldReader::string(const std::string& key, std::optional<std::string> fallback) {
  const nlohmann::json* value = find(key, !fallback);
  if (value == nullptr) return fallback.value_or("");
  if (value->is_string()) return value->get<std::string>();
  wrong(key, "a string", *value);
  return fallback.value_or("");
}

std::int64_t FieldReader::integer(const std::string& key, std::int64_t min, std::int64_t max,
                                  std::optional<std::int64_t> fallback) {
  const nlohmann::json* value = find(key, !fallback);
  if (value == nullptr) return fallback.value_or(min);
  if (const auto number = integer_within(*value, min, max)) return *number;
  wrong(key, absl::StrCat("an integer from ", min, " to ", max), *value);
  return fallback.value_or(min);
}

std::pair<std::int64_t, std::int64_t> FieldReader::pair(
    const std::string& key, std::int64_t min, std::int64_t max,
    std::optional<std::pair<std::int64_t, std::int64_t>> fallback) {
  const nlohmann::json* value = find(key, !fallback);
  if (value != nullptr) {
    if (const auto both = integer_within(*value, min, max)) return {*both, *both};
    if (value->is_array() && value->size() == 2) {
      const auto height = integer_within((*value)[0], min, max);
      const auto width = integer_within((*value)[1], min, max);
      if (height && width) return {*height, *width};
    }
    wrong(key, absl::StrCat("an integer from ", min, " to ", max, ", or [height, width] of such"),
          *value);
  }
  return fallback.value_or(std::pair{min, min});
}

double FieldReader::number(const std::string& key, double min, double max, double fallback) {
  const nlohmann::json* value = find(key, false);
  if (value == nullptr) return fallback;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (std::isfinite(number) && number >= min && number <= max) return number;
  }
  wrong(key, absl::StrCat("a number from ", min, " to ", max), *value);
  return fallback;
}

bool FieldReader::boolean(const std::string& key, bool fallback) {
  const nlohmann::json* value = find(key, false);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  wrong(key, "true or false", *value);
  return fallback;
}

std::vector<std::string> FieldReader::strings(const std::string& key) {
  std::vector<std::string> result;
  const nlohmann::json* value = find(key, false);
  if (value == nullptr) return result;
  if (!value->is_array() || value->empty() ||
      !std::all_of(value->begin(), value->end(),
                   [](const auto& item) { return item.is_string(); })) {
    wrong(key, "a list of names", *value);
    return result;
  }
  for (const auto& item : *value) result.push_back(item.template get<std::string>());
  return result;
}

std::vector<std::int64_t> FieldReader::integers(const std::string& key, std::size_t min_count,
                                                std::size_t max_count, std::int64_t min,
                                                std::int64_t max) {
  std::vector<std::int64_t> result;
  const nlohmann::json* value = find(key, true);
  if (value == nullptr) return result;
  if (value->is_array() && value->size() >= min_count && value->size() <= max_count) {
    for (const auto& item : *value) {
      if (const auto number = integer_within(item, min, max)) result.push_back(*number);
    }
    if (result.size() == value->size()) return result;
  }
  wrong(
      key,
      absl::StrCat("a list of ", min_count, " to ", max_count, " integers from ", min, " to ", max),
      *value);
  return {};
}

const nlohmann::json* FieldReader::object(const std::string& key) {
  const nlohmann::json* value = find(key, false);
  if (value == nullptr || value->is_object()) return value;
  wrong(key, "an object", *value);
  return nullptr;
}

const nlohmann::json* FieldReader::array(const std::string& key) {
  const nlohmann::json* value = find(key, true);
  if (value == nullptr || value->is_array()) return value;
  wrong(key, "a list", *value);
  return nullptr;
}

absl::Status FieldReader::finish() {
  if (!status_.ok() || !object_.is_object()) return status_;
  for (const auto& item : object_.items()) {
    if (std::find(known_.begin(), known_.end(), item.key()) != known_.end()) continue;
    const std::string key = json_excerpt(item.key());
    fail(absl::StrCat("unknown key ", key, did_you_mean(item.key(), known_)));
    break;
  }
  return status_;
}

}  // namespace poseidon
