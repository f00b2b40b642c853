#include "common/job/job_change.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/json_fields.h"
#include "common/job/job.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

constexpr std::array<std::string_view, 9> kMayChange = {"iterations",
                                                        "batch_size",
                                                        "micro_batches",
                                                        "data",
                                                        "test_every_iterations",
                                                        "checkpoint",
                                                        "membership",
                                                        "optimizer.learning_rate",
                                                        "optimizer.schedule"};

bool may_change(const std::string& path) {
  return std::ranges::any_of(kMayChange, [&path](std::string_view key) {
    return path == key || path.starts_with(std::string(key) + ".");
  });
}

std::string value_text(const nlohmann::json* value) {
  return value == nullptr ? "absent" : json_excerpt(*value);
}

const nlohmann::json* member(const nlohmann::json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

/// What differs first, below `path`.
std::optional<std::string> difference(const nlohmann::json* from, const nlohmann::json* to,
                                      const std::string& path) {
  if (may_change(path)) return std::nullopt;
  if (from != nullptr && to != nullptr && from->is_object() && to->is_object()) {
    std::set<std::string> keys;
    for (const auto* object : {from, to}) {
      for (const auto& item : object->items()) keys.insert(item.key());
    }
    for (const std::string& key : keys) {
      const std::string below = path.empty() ? key : absl::StrCat(path, ".", key);
      if (auto found = difference(member(*from, key), member(*to, key), below)) return found;
    }
    return std::nullopt;
  }
  if (from != nullptr && to != nullptr && *from == *to) return std::nullopt;
  return absl::StrCat(path, " was ", value_text(from), " and is ", value_text(to),
                      ", which may not change from a checkpoint on");
}

}  // namespace

absl::Status check_job_change(const std::string& from_json, const std::string& to_json) {
  if (from_json == to_json) return absl::OkStatus();
  // Written again, so that a default is equal to its absence.
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec from, parse_job(from_json));
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec to, parse_job(to_json));
  const auto before = nlohmann::json::parse(job_to_json(from), nullptr, /*allow_exceptions=*/false);
  const auto after = nlohmann::json::parse(job_to_json(to), nullptr, /*allow_exceptions=*/false);
  const std::optional<std::string> found = difference(&before, &after, "");
  return found ? absl::InvalidArgumentError(*found) : absl::OkStatus();
}

}  // namespace poseidon
