#include "coordinator/planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/chunking.h"
#include "common/nearest.h"
#include "common/status_macros.h"
#include "coordinator/placement.h"

namespace poseidon {
namespace {

std::string megabytes(std::int64_t bytes) {
  return absl::StrFormat("%.3g MB", static_cast<double>(bytes) / 1e6);
}

// What validate(Plan) would say too, but before chunking works with the values.
absl::Status check_input(const PlannerInput& input) {
  if (input.worker_addresses.empty()) return absl::InvalidArgumentError("planning needs a worker");
  if (input.server_addresses.empty()) return absl::InvalidArgumentError("planning needs a server");
  if (input.sync.chunk_bytes < kElementBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("sync.chunk_bytes is ", input.sync.chunk_bytes, "; it must hold an element"));
  }
  for (const PlannerLayer& layer : input.layers) {
    if (layer.parameters < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer.name, " has ", layer.parameters, " parameters to plan for"));
    }
    if (layer.is_fully_connected && layer.shape.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer.name, " is fully connected, but its weight has ",
                       layer.shape.size(), " dimensions instead of 2"));
    }
  }
  return check_layer_schemes(input.layers, input.sync);
}

}  // namespace

SchemeCosts scheme_costs(const PlannerLayer& layer, std::int64_t batch_size, std::uint32_t workers,
                         std::uint32_t servers) {
  POSEIDON_CHECK(workers > 0 && servers > 0, "costs need nodes");
  // In 128 bits: batch and sizes are the user's, and a product of three of them must not wrap.
  __extension__ using Wide = __int128;
  const Wide weight =
      layer.is_fully_connected ? Wide{layer.shape[0]} * layer.shape[1] : Wide{layer.parameters};
  const Wide p1 = workers;
  const Wide p2 = servers;
  const Wide limit = INT64_MAX;
  SchemeCosts costs;
  const Wide ps = (2 * weight * (p1 + p2 - 2) * kElementBytes + p2 - 1) / p2;
  costs.ps_bytes = static_cast<std::int64_t>(std::min(ps, limit));
  if (layer.is_fully_connected) {
    const Wide sfb =
        2 * Wide{batch_size} * (p1 - 1) * (Wide{layer.shape[0]} + layer.shape[1]) * kElementBytes;
    costs.sfb_bytes = static_cast<std::int64_t>(std::min(sfb, limit));
    costs.sfb_applies = true;
  }
  return costs;
}

std::string_view asked_scheme(const PlannerLayer& layer, const SyncSpec& sync) {
  const auto pinned = sync.layer_schemes.find(layer.name);
  const std::string_view asked =
      pinned == sync.layer_schemes.end() ? sync.scheme : std::string_view(pinned->second);
  return asked == "sfb" && !layer.is_fully_connected ? "ps" : asked;
}

SchemeChoice choose_scheme(const PlannerLayer& layer, const SchemeCosts& costs,
                           const SyncSpec& sync) {
  const std::string ps = megabytes(costs.ps_bytes);
  if (!costs.sfb_applies) {
    return {Scheme::kPs, absl::StrCat("a ", layer.type, " layer has no factors to send: PS, ", ps,
                                      " per node and iteration")};
  }
  const std::string sfb = megabytes(costs.sfb_bytes);
  const std::string_view asked = asked_scheme(layer, sync);
  const std::string by_ps =
      absl::StrCat("PS, ", ps, " per node and iteration (SFB would move ", sfb, ")");
  const std::string by_sfb =
      absl::StrCat("SFB, ", sfb, " per node and iteration (PS would move ", ps, ")");
  if (asked == "ps") return {Scheme::kPs, absl::StrCat("sync.scheme asks for it: ", by_ps)};
  if (asked == "sfb") return {Scheme::kSfb, absl::StrCat("sync.scheme asks for it: ", by_sfb)};
  if (costs.sfb_bytes == 0) return {Scheme::kSfb, "one worker: by SFB there is nothing to send"};
  if (costs.sfb_bytes == costs.ps_bytes) {
    return {Scheme::kSfb,
            absl::StrCat("as many bytes either way: SFB, ", sfb, " per node and iteration")};
  }
  if (costs.sfb_bytes < costs.ps_bytes)
    return {Scheme::kSfb, absl::StrCat("fewer bytes: ", by_sfb)};
  return {Scheme::kPs, absl::StrCat("fewer bytes: ", by_ps)};
}

absl::Status check_layer_schemes(const std::vector<PlannerLayer>& layers, const SyncSpec& sync) {
  std::vector<std::string> names;
  for (const PlannerLayer& layer : layers) names.push_back(layer.name);
  for (const auto& [name, scheme] : sync.layer_schemes) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sync.scheme.", name, ": the network has no layer of this name with parameters",
          did_you_mean(name, names), "; `poseidon models` lists a network's layers"));
    }
    const PlannerLayer& layer = layers[static_cast<std::size_t>(found - names.begin())];
    if (scheme == "sfb" && !layer.is_fully_connected) {
      return absl::InvalidArgumentError(
          absl::StrCat("sync.scheme.", name, ": \"sfb\" needs a fully connected layer, ", name,
                       " is a ", layer.type, " layer; use \"ps\" or \"auto\""));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> make_plan(const PlannerInput& input) {
  POSEIDON_RETURN_IF_ERROR(check_input(input));
  Plan plan;
  plan.epoch = input.epoch;
  plan.batch_size = input.batch_size;
  plan.worker_addresses = input.worker_addresses;
  plan.server_addresses = input.server_addresses;
  std::vector<std::int64_t> chunk_bytes;
  for (const PlannerLayer& layer : input.layers) {
    const SchemeCosts costs = scheme_costs(layer, input.batch_size, plan.workers(), plan.servers());
    SchemeChoice choice = choose_scheme(layer, costs, input.sync);
    const LayerIndex index(static_cast<std::uint32_t>(plan.layers.size()));
    plan.layers.push_back({.name = layer.name,
                           .type = layer.type,
                           .shape = layer.shape,
                           .parameters = layer.parameters,
                           .scheme = choice.scheme,
                           .ps_bytes = costs.ps_bytes,
                           .sfb_bytes = costs.sfb_bytes,
                           .reason = std::move(choice.reason)});
    if (plan.layers.back().scheme == Scheme::kSfb) continue;  // no server owns it
    for (const ChunkRange& range : split_into_chunks(layer.parameters, input.sync.chunk_bytes)) {
      plan.chunks.push_back({index, range.offset, range.elements, ServerIndex(0)});
      chunk_bytes.push_back(range.elements * kElementBytes);
    }
  }
  const std::vector<ServerIndex> owners = place_chunks(chunk_bytes, plan.servers());
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) plan.chunks[i].server = owners[i];
  POSEIDON_RETURN_IF_ERROR(validate(plan));
  return plan;
}

}  // namespace poseidon
