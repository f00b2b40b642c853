#include "coordinator/job/plan_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/files/json_fields.h"
#include "common/files/sha256.h"

namespace poseidon {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxDepth = 8;

/// Others have no choice of schemes.
bool is_matrix(const PlanLayer& layer) { return layer.shape.size() == 2; }

std::string name_of(Scheme scheme) { return std::string(scheme_name(scheme)); }

absl::StatusOr<EarlierPlan> read_plan(const nlohmann::json& json, std::string_view source,
                                      const std::string& path, std::string* machines) {
  JsonFields fields(json, source, path);
  EarlierPlan plan;
  for (const char* key : {"machines", "job", "schemes"}) fields.require(key);
  fields.string("machines", machines);
  fields.string("job", &plan.job_id);
  const nlohmann::json* schemes = fields.value("schemes");
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  JsonFields layers(*schemes, source, fields.path_of("schemes"));
  POSEIDON_RETURN_IF_ERROR(layers.status());  // no object
  for (const auto& layer : schemes->items()) {
    std::string scheme;
    layers.one_of(layer.key(), &scheme, {"ps", "sfb"});
    plan.schemes[layer.key()] = scheme == "sfb" ? Scheme::kSfb : Scheme::kPs;
  }
  POSEIDON_RETURN_IF_ERROR(layers.finish());
  return plan;
}

/// As a line of the job file.
std::string pin_line(const EarlierPlan& plan) {
  Json schemes = Json::object();
  for (const auto& [layer, scheme] : plan.schemes) schemes[layer] = name_of(scheme);
  const Scheme first = plan.schemes.begin()->second;
  if (std::ranges::all_of(plan.schemes, [&](const auto& one) { return one.second == first; })) {
    schemes = name_of(first);
  }
  const Json sync = {{"scheme", std::move(schemes)}};
  return absl::StrCat("\"sync\": ",
                      sync.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace

std::string machines_digest(const Roster& roster) {
  std::map<std::string, std::vector<std::string>> nodes;  // by machine
  for (const auto* group : roster.groups()) {
    const std::vector<std::string> machines = machines_of(*group);
    for (std::size_t i = 0; i < group->size(); ++i) {
      const NodeInfo& node = (*group)[i].node;
      const std::string machine =
          machines[i].empty() ? absl::StrCat("alone ", node.id.value()) : machines[i];
      nodes[machine].push_back(absl::StrCat(role_name(node.role), " ", node.device));
    }
  }
  std::vector<std::string> machines;
  for (auto& [machine, on_it] : nodes) {
    std::ranges::sort(on_it);
    machines.push_back(absl::StrJoin(on_it, ", "));
  }
  std::ranges::sort(machines);
  return absl::BytesToHexString(sha256(absl::StrJoin(machines, "\n")));
}

absl::StatusOr<PlanMemory> PlanMemory::from_json(std::string_view text, std::string_view source) {
  POSEIDON_ASSIGN_OR_RETURN(
      const nlohmann::json json,
      parse_checked_json(text, source, {.max_bytes = kMaxBytes, .max_depth = kMaxDepth}));
  JsonFields fields(json, source, "");
  fields.require("plans");
  const nlohmann::json* plans = fields.array("plans", "plans", 1, kMostPlans);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  PlanMemory memory;
  for (const nlohmann::json& plan : *plans) {
    std::string machines;
    POSEIDON_ASSIGN_OR_RETURN(
        EarlierPlan read,
        read_plan(plan, source, absl::StrCat("plans[", memory.entries_.size(), "]"), &machines));
    memory.entries_.push_back({.machines = std::move(machines), .plan = std::move(read)});
  }
  return memory;
}

std::string PlanMemory::to_json() const {
  Json plans = Json::array();
  for (const Entry& entry : entries_) {
    Json schemes = Json::object();
    for (const auto& [layer, scheme] : entry.plan.schemes) schemes[layer] = name_of(scheme);
    plans.push_back({{"machines", entry.machines},
                     {"job", entry.plan.job_id},
                     {"schemes", std::move(schemes)}});
  }
  return checked_json(Json{{"plans", std::move(plans)}});
}

const EarlierPlan* PlanMemory::find(const std::string& machines) const {
  const auto found = std::ranges::find(entries_, machines, &Entry::machines);
  return found == entries_.end() ? nullptr : &found->plan;
}

bool PlanMemory::remember(const std::string& machines, EarlierPlan plan) {
  const auto found = std::ranges::find(entries_, machines, &Entry::machines);
  if (found != entries_.end()) {
    if (found->plan == plan) return false;
    entries_.erase(found);
  }
  entries_.push_back({.machines = machines, .plan = std::move(plan)});
  if (entries_.size() > kMostPlans) entries_.erase(entries_.begin());
  return true;
}

EarlierPlan earlier_plan(const Plan& plan, const std::string& job_id) {
  EarlierPlan kept{.job_id = job_id, .schemes = {}};
  for (const PlanLayer& layer : plan.layers) {
    if (is_matrix(layer)) kept.schemes[layer.name] = layer.scheme;
  }
  return kept;
}

std::string compare_with_earlier(const EarlierPlan& earlier, const Plan& plan,
                                 const std::string& job_id) {
  std::vector<std::string> changes;
  std::size_t compared = 0;
  for (const PlanLayer& layer : plan.layers) {
    const auto before = earlier.schemes.find(layer.name);
    if (!is_matrix(layer) || before == earlier.schemes.end()) continue;
    ++compared;
    if (before->second == layer.scheme) continue;
    changes.push_back(
        absl::StrCat(layer.name, " by ", name_of(layer.scheme), ", was ", name_of(before->second)));
  }
  if (compared == 0 || compared != earlier.schemes.size()) return "";
  const std::string whose = earlier.job_id == job_id
                                ? "this job's earlier plan"
                                : absl::StrCat("the plan of ", earlier.job_id,
                                               ", the last run of this job on such machines");
  if (changes.empty()) return absl::StrCat("with the schemes of ", whose);
  return absl::StrCat(
      "differs from ", whose, " (", absl::StrJoin(changes, "; "), ")",
      plan.calibration ? ", by which an iteration would take at least 5 % longer now" : "",
      "; to pin that one: ", pin_line(earlier));
}

}  // namespace poseidon
