#include "client/program_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/job/declared_model.h"
#include "common/job/job.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

/// Every layer goes by the servers: the library has no factors yet.
absl::Status take_servers_alone(SyncSpec& sync) {
  std::string demands = sync.scheme == "sfb" ? "sync.scheme" : "";
  for (const auto& [layer, scheme] : sync.layer_schemes) {
    if (scheme == "sfb") demands = absl::StrCat("sync.scheme.", layer);
  }
  if (!demands.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        demands, ": \"sfb\" is not possible for programs yet: write \"ps\" or \"auto\""));
  }
  if (!sync.plan.is_null()) {
    return absl::InvalidArgumentError(
        "sync.plan: a given plan is not possible for programs yet: remove it");
  }
  sync.scheme = "ps";
  sync.layer_schemes.clear();
  return absl::OkStatus();
}

bool says_min_workers(std::string_view text) {
  const nlohmann::json job = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto membership = job.find("membership");
  return membership != job.end() && membership->is_object() && membership->contains("min_workers");
}

}  // namespace

absl::StatusOr<ProgramJobText> parse_program_job(std::string_view text, std::int64_t workers) {
  POSEIDON_ASSIGN_OR_RETURN(JobSpec job, parse_job(text));
  if (!is_declared_model(job.model)) {
    return absl::InvalidArgumentError(
        "model: a program declares its layers ({\"name\": ..., \"declared\": [...]}), see "
        "models/README.md; networks that workers compute are for `poseidon submit`");
  }
  absl::StatusOr<ModelLayout> layout = resolve_layout(job.model, ".");
  if (!layout.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("model: ", layout.status().message()));
  }
  POSEIDON_RETURN_IF_ERROR(take_servers_alone(job.sync));
  if (!says_min_workers(text)) {
    job.membership.min_workers = workers;
    job.membership.max_workers = std::max(job.membership.max_workers, workers);
  }
  return ProgramJobText{.json = job_to_json(job),
                        .layout = *std::move(layout),
                        .sums = job.optimizer.type == OptimizerType::kSum,
                        .gives_rates = job.optimizer.rates_by_program};
}

}  // namespace poseidon
