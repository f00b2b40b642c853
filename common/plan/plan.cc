#include "common/plan/plan.h"

#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plan/chunking.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

// Far above any real network; below it, no arithmetic on element counts can overflow.
constexpr std::int64_t kMaxLayerParameters = std::int64_t{1} << 40;

bool is_multiplier(double value) {
  return value >= 0.0 && value <= std::numeric_limits<float>::max();
}

// A network layer has a handful.
constexpr std::size_t kMaxTensors = 64;

absl::Status validate_tensors(const PlanLayer& layer) {
  if (layer.tensors.empty()) return absl::OkStatus();
  const auto refuse = [&layer](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("plan: layer ", layer.name, what));
  };
  if (layer.tensors.size() > kMaxTensors) {
    return refuse(absl::StrCat(" has ", layer.tensors.size(), " tensors, more than ", kMaxTensors));
  }
  std::int64_t rest = layer.parameters;
  for (const PlanTensor& tensor : layer.tensors) {
    if (tensor.elements < 1 || tensor.elements > rest) {
      return refuse(absl::StrCat(": tensor ", tensor.name, " has ", tensor.elements,
                                 " elements, between 1 and ", rest, " are left for it"));
    }
    rest -= tensor.elements;
    if (!is_multiplier(tensor.multipliers.learning_rate) ||
        !is_multiplier(tensor.multipliers.weight_decay)) {
      return refuse(absl::StrCat(": tensor ", tensor.name,
                                 " has a multiplier that is no finite number, at least 0"));
    }
  }
  if (rest != 0) return refuse(absl::StrCat(": ", rest, " elements belong to no tensor"));
  const bool matrix_and_bias = layer.tensors.size() <= 2 && layer.shape.size() == 2 &&
                               layer.tensors.front().elements == layer.shape[0] * layer.shape[1];
  if (layer.scheme == Scheme::kSfb && !matrix_and_bias) {
    return refuse(" goes by SFB, but its tensors are not a matrix with or without a bias");
  }
  return absl::OkStatus();
}

absl::Status validate_layer(const PlanLayer& layer) {
  if (layer.name.empty()) return absl::InvalidArgumentError("plan: a layer has no name");
  if (layer.parameters < 1 || layer.parameters > kMaxLayerParameters) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: layer ", layer.name, " has ", layer.parameters,
                     " parameters; it must have between 1 and ", kMaxLayerParameters));
  }
  std::int64_t weight = 1;
  for (const std::int64_t dimension : layer.shape) {
    if (dimension < 1 || dimension > layer.parameters / weight) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: the weight shape of layer ", layer.name, " has a dimension ",
                       dimension, " that does not fit its ", layer.parameters, " parameters"));
    }
    weight *= dimension;
  }
  // Factors stand for one matrix and a bias of its height; nothing else can be rebuilt from them.
  if (layer.scheme == Scheme::kSfb &&
      (layer.shape.size() != 2 ||
       (layer.parameters != weight && layer.parameters != weight + layer.shape[0]))) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: layer ", layer.name, " goes by SFB, but its ", layer.parameters,
                     " parameters are not a matrix with or without a bias"));
  }
  if (layer.ps_bytes < 0 || layer.sfb_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: layer ", layer.name, " has a negative cost"));
  }
  return validate_tensors(layer);
}

nlohmann::ordered_json layer_to_json(const PlanLayer& layer) {
  nlohmann::ordered_json json = {{"name", layer.name},
                                 {"type", layer.type},
                                 {"shape", layer.shape},
                                 {"parameters", layer.parameters},
                                 {"scheme", scheme_name(layer.scheme)},
                                 {"ps_bytes", layer.ps_bytes},
                                 {"sfb_bytes", layer.sfb_bytes},
                                 {"reason", layer.reason}};
  for (const PlanTensor& tensor : layer.tensors) {
    if (tensor.multipliers == StepMultipliers{}) continue;
    json["multipliers"][tensor.name] = {{"learning_rate", tensor.multipliers.learning_rate},
                                        {"weight_decay", tensor.multipliers.weight_decay},
                                        {"trust_ratio", tensor.multipliers.trust_ratio}};
  }
  if (layer.prediction) {
    json["ps_seconds"] = layer.prediction->ps_s;
    json["sfb_seconds"] = layer.prediction->sfb_s;
    json["rebuild_seconds"] = layer.prediction->rebuild_s;
    json["stall_seconds"] = layer.prediction->stall_s;
    json["sync_seconds"] = layer.prediction->sync_s;
  }
  return json;
}

}  // namespace

std::string_view scheme_name(Scheme scheme) {
  switch (scheme) {
    case Scheme::kPs:
      return "ps";
    case Scheme::kSfb:
      return "sfb";
  }
  return "unknown";
}

std::string_view norm_scope_name(NormScope scope) {
  switch (scope) {
    case NormScope::kNone:
      return "none";
    case NormScope::kLayer:
      return "layer";
    case NormScope::kNetwork:
      return "network";
    case NormScope::kProgram:
      return "program";
  }
  return "unknown";
}

absl::Status validate_chunks(const Plan& plan) {
  // Walks layers and chunks side by side: `covered` elements of PS layer `layer` are accounted for.
  const auto next_ps_layer = [&plan](std::size_t from) {
    while (from < plan.layers.size() && plan.layers[from].scheme == Scheme::kSfb) ++from;
    return from;
  };
  std::size_t layer = next_ps_layer(0);
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    const PlanChunk& chunk = plan.chunks[i];
    if (chunk.server.value() >= plan.servers()) {
      return absl::InvalidArgumentError(absl::StrCat("plan: chunk ", i, " is on server ",
                                                     chunk.server.value(), " of ", plan.servers()));
    }
    if (layer >= plan.layers.size() || chunk.layer.value() != layer || chunk.offset != covered ||
        chunk.elements < 1 || chunk.elements > plan.layers[layer].parameters - covered) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: chunk ", i, " (layer ", chunk.layer.value(), ", offset ",
                       chunk.offset, ", elements ", chunk.elements, ") does not continue layer ",
                       layer, " at element ", covered));
    }
    covered += chunk.elements;
    if (covered == plan.layers[layer].parameters) {
      layer = next_ps_layer(layer + 1);
      covered = 0;
    }
  }
  if (layer != plan.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("plan: layer ", plan.layers[layer].name,
                                                   " is covered up to element ", covered, " of ",
                                                   plan.layers[layer].parameters));
  }
  return absl::OkStatus();
}

namespace {

absl::Status validate_leaders(const Plan& plan) {
  if (plan.leaders.empty()) return absl::OkStatus();
  if (plan.leaders.size() != plan.workers()) {
    return absl::InvalidArgumentError(absl::StrCat("plan: leaders of ", plan.leaders.size(),
                                                   " workers, it has ", plan.workers()));
  }
  if (plan.norm_scope != NormScope::kNone) {
    return absl::InvalidArgumentError(
        "plan: it has leaders, and steps that need norms, which relays do not carry");
  }
  for (std::uint32_t rank = 0; rank < plan.workers(); ++rank) {
    const std::uint32_t leader = plan.leaders[rank].value();
    if (leader > rank || plan.leaders[leader].value() != leader) {
      return absl::InvalidArgumentError(absl::StrCat("plan: worker ", leader,
                                                     " cannot lead worker ", rank,
                                                     ": a group's lowest rank leads it"));
    }
    if (leader != rank && plan.worker_addresses[leader].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: worker ", leader, " leads others, but listens nowhere"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::vector<std::uint32_t>> local_groups(const std::vector<WorkerRank>& leaders) {
  std::map<WorkerRank, std::vector<std::uint32_t>> by_leader;
  for (std::uint32_t rank = 0; rank < leaders.size(); ++rank) {
    by_leader[leaders[rank]].push_back(rank);
  }
  std::vector<std::vector<std::uint32_t>> groups;
  for (auto& [leader, group] : by_leader) groups.push_back(std::move(group));
  return groups;
}

std::uint64_t proof_at(const std::vector<std::uint64_t>& proofs, std::uint32_t index) {
  return index < proofs.size() ? proofs[index] : 0;
}

WorkerRank leader_of(const Plan& plan, WorkerRank rank) {
  return plan.leaders.empty() ? rank : plan.leaders[rank.value()];
}

std::vector<WorkerRank> group_of(const Plan& plan, WorkerRank leader) {
  if (plan.leaders.empty()) return {leader};
  std::vector<WorkerRank> group;
  for (std::uint32_t rank = 0; rank < plan.workers(); ++rank) {
    if (plan.leaders[rank] == leader) group.emplace_back(rank);
  }
  return group;
}

std::vector<WorkerRank> contributors(const Plan& plan) {
  std::vector<WorkerRank> ranks;
  for (std::uint32_t rank = 0; rank < plan.workers(); ++rank) {
    if (leader_of(plan, WorkerRank(rank)) == WorkerRank(rank)) ranks.emplace_back(rank);
  }
  return ranks;
}

absl::Status validate(const Plan& plan) {
  if (plan.epoch.value() == 0) return absl::InvalidArgumentError("plan: the epoch is missing");
  if (plan.batch_size < 1 || plan.batch_size > std::numeric_limits<std::uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: batch size ", plan.batch_size, " is out of range"));
  }
  if (element_bytes(plan.wire_type) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("plan: wire element type ",
                                                   static_cast<std::uint32_t>(plan.wire_type),
                                                   " is none of fp32, bf16, fp16"));
  }
  if (plan.worker_addresses.empty()) return absl::InvalidArgumentError("plan: it has no workers");
  if (plan.server_addresses.empty()) return absl::InvalidArgumentError("plan: it has no servers");
  std::set<std::string_view> servers;
  for (const std::string& address : plan.server_addresses) {
    if (address.empty()) return absl::InvalidArgumentError("plan: a server has no address");
    if (!servers.insert(address).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: two servers have the address ", address));
    }
  }
  if (plan.layers.empty()) {
    return absl::InvalidArgumentError(
        "plan: the network has no parameters, there is nothing to train");
  }
  if (plan.chunks.size() > std::numeric_limits<std::uint32_t>::max()) {
    return absl::InvalidArgumentError("plan: more than 2^32 chunks; raise sync.chunk_bytes");
  }
  if (plan.chunk_bytes != 0 &&
      (plan.chunk_bytes < kElementBytes || plan.chunk_bytes > kMaxChunkBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: chunks of ", plan.chunk_bytes, " bytes are out of range"));
  }
  if (plan.window_bytes < kMinWorkerWindowBytes || plan.window_bytes > kMaxWorkerWindowBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: a window of ", plan.window_bytes, " bytes is out of range"));
  }
  if (absl::Status status = validate_leaders(plan); !status.ok()) return status;
  std::set<std::string_view> names;
  for (const PlanLayer& layer : plan.layers) {
    if (absl::Status status = validate_layer(layer); !status.ok()) return status;
    if (!names.insert(layer.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("plan: two layers are called ", layer.name));
    }
  }
  return validate_chunks(plan);
}

std::string plan_to_json(const Plan& plan) {
  nlohmann::ordered_json json;
  json["epoch"] = plan.epoch.value();
  json["workers"] = plan.workers();
  json["servers"] = plan.servers();
  json["batch_size"] = plan.batch_size;
  json["wire_dtype"] = wire_dtype_name(plan.wire_type);
  json["send_order"] = send_order_name(plan.send_order);
  json["norm_scope"] = norm_scope_name(plan.norm_scope);
  json["chunk_bytes"] = plan.chunk_bytes;
  json["window_bytes"] = plan.window_bytes;
  json["worker_addresses"] = plan.worker_addresses;
  json["server_addresses"] = plan.server_addresses;
  json["local_groups"] = local_groups(plan.leaders);
  std::int64_t iteration_bytes = 0;
  json["layers"] = nlohmann::ordered_json::array();
  for (const PlanLayer& layer : plan.layers) {
    iteration_bytes += layer.scheme == Scheme::kPs ? layer.ps_bytes : layer.sfb_bytes;
    json["layers"].push_back(layer_to_json(layer));
  }
  json["iteration_bytes"] = iteration_bytes;
  if (plan.prediction) {
    json["predicted"] = {{"iteration_seconds", plan.prediction->iteration_s},
                         {"compute_seconds", plan.prediction->compute_s},
                         {"by_bytes_seconds", plan.prediction->by_bytes_s},
                         {"all_ps_seconds", plan.prediction->all_ps_s},
                         {"all_sfb_seconds", plan.prediction->all_sfb_s}};
  }
  if (plan.calibration) json["calibration"] = calibration_to_json(*plan.calibration);
  json["chunks"] = nlohmann::ordered_json::array();
  for (const PlanChunk& chunk : plan.chunks) {
    json["chunks"].push_back({{"layer", chunk.layer.value()},
                              {"offset", chunk.offset},
                              {"elements", chunk.elements},
                              {"server", chunk.server.value()}});
  }
  // Names may come from a hostile file: bytes that are no UTF-8 are replaced, never thrown about.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace poseidon
