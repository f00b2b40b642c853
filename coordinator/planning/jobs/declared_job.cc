#include "coordinator/planning/jobs/declared_job.h"

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "models/net/model_layout.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

constexpr std::size_t kMaxShownBytes = 200;  // of a value

std::string shown(const nlohmann::json& job, const std::string& key) {
  const auto found = job.find(key);
  if (found == job.end()) return "missing";
  const std::string text = found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() <= kMaxShownBytes) return text;
  return str_cat(utf8_prefix(text, kMaxShownBytes), "...");
}

std::string count_difference(const char* what, std::uint32_t here, std::uint32_t there) {
  return here == there ? "" : absl::StrCat(here, " ", what, " here, ", there, " there");
}

/// Of two models that are not the same text.
std::string model_difference(const nlohmann::json& here, const nlohmann::json& there) {
  const auto ours = parse_declared_model(here), theirs = parse_declared_model(there);
  if (!ours.ok() || !theirs.ok()) return "they cannot be read";
  std::string difference = layout_difference(*ours, *theirs);
  if (difference.empty() && ours->name != theirs->name) {
    difference = absl::StrCat("its name is ", ours->name, " here, ", theirs->name, " there");
  }
  return difference;  // "": two spellings of one model
}

}  // namespace

std::string declared_difference(const DeclaredJob& here, const DeclaredJob& there) {
  for (const std::string& difference : {count_difference("workers", here.workers, there.workers),
                                        count_difference("servers", here.servers, there.servers)}) {
    if (!difference.empty()) return difference;
  }
  const nlohmann::json ours = nlohmann::json::parse(here.json, nullptr, false);
  const nlohmann::json theirs = nlohmann::json::parse(there.json, nullptr, false);
  if (ours == theirs) return "";
  if (!ours.is_object() || !theirs.is_object()) return "the job cannot be read";
  nlohmann::json both = theirs;
  both.update(ours);
  for (const auto& [key, value] : both.items()) {
    if (ours.contains(key) && theirs.contains(key) && ours[key] == theirs[key]) continue;
    if (key != "model") {
      return absl::StrCat(key, " is ", shown(ours, key), " here, ", shown(theirs, key), " there");
    }
    if (const std::string text = model_difference(ours.value(key, nlohmann::json()),
                                                  theirs.value(key, nlohmann::json()));
        !text.empty()) {
      return absl::StrCat("model: ", text);
    }
  }
  return "";
}

}  // namespace poseidon
