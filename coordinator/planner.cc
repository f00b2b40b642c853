#include "coordinator/planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/chunking.h"
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
  return absl::OkStatus();
}

}  // namespace

SchemeCosts scheme_costs(const PlannerLayer& layer, std::int64_t batch_size, std::uint32_t workers,
                         std::uint32_t servers, ElementType wire_type) {
  POSEIDON_CHECK(workers > 0 && servers > 0, "costs need nodes");
  // In 128 bits: batch and sizes are the user's, and a product of three of them must not wrap.
  __extension__ using Wide = __int128;
  const Wide weight =
      layer.is_fully_connected ? Wide{layer.shape[0]} * layer.shape[1] : Wide{layer.parameters};
  const Wide p1 = workers;
  const Wide p2 = servers;
  const Wide limit = INT64_MAX;
  const Wide wire_bytes = static_cast<std::int64_t>(element_bytes(wire_type));
  SchemeCosts costs;
  const Wide ps = (2 * weight * (p1 + p2 - 2) * wire_bytes + p2 - 1) / p2;
  costs.ps_bytes = static_cast<std::int64_t>(std::min(ps, limit));
  if (layer.is_fully_connected) {
    const Wide sfb =
        2 * Wide{batch_size} * (p1 - 1) * (Wide{layer.shape[0]} + layer.shape[1]) * kElementBytes;
    costs.sfb_bytes = static_cast<std::int64_t>(std::min(sfb, limit));
    costs.sfb_applies = true;
  }
  return costs;
}

SchemeChoice choose_scheme(const PlannerLayer& layer, const SchemeCosts& costs,
                           const SyncSpec& sync) {
  SchemeChoice choice;
  choice.scheme = Scheme::kPs;
  if (!layer.is_fully_connected || !costs.sfb_applies) {
    choice.reason = absl::StrCat("a ", layer.type, " layer has no factors to send: PS, ",
                                 megabytes(costs.ps_bytes), " per node and iteration");
  } else {
    choice.reason = absl::StrCat(
        sync.scheme == "ps" ? "sync.scheme asks for PS" : "PS carries every layer in this version",
        ": ", megabytes(costs.ps_bytes), " per node and iteration (SFB would move ",
        megabytes(costs.sfb_bytes), ")");
  }
  return choice;
}

absl::StatusOr<Plan> make_plan(const PlannerInput& input) {
  POSEIDON_RETURN_IF_ERROR(check_input(input));
  Plan plan;
  plan.epoch = input.epoch;
  plan.batch_size = input.batch_size;
  plan.wire_type = input.sync.wire_dtype;
  plan.worker_addresses = input.worker_addresses;
  plan.server_addresses = input.server_addresses;
  std::vector<std::int64_t> chunk_bytes;
  for (const PlannerLayer& layer : input.layers) {
    const SchemeCosts costs =
        scheme_costs(layer, input.batch_size, plan.workers(), plan.servers(), plan.wire_type);
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
