#include "common/plan/plan_proto.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {

v1::PlanMessage plan_to_message(const Plan& plan) {
  POSEIDON_CHECK(validate(plan).ok(), "only valid plans are sent");
  v1::PlanMessage message;
  message.set_epoch(plan.epoch.value());
  message.set_batch_size(static_cast<std::uint32_t>(plan.batch_size));
  message.set_wire_dtype(std::string(wire_dtype_name(plan.wire_type)));
  message.set_send_order(std::string(send_order_name(plan.send_order)));
  message.set_norm_scope(std::string(norm_scope_name(plan.norm_scope)));
  for (const std::string& address : plan.worker_addresses) message.add_worker_addresses(address);
  for (const std::string& address : plan.server_addresses) message.add_server_addresses(address);
  for (const WorkerRank leader : plan.leaders) message.add_leaders(leader.value());
  for (const PlanLayer& layer : plan.layers) {
    v1::PlanLayerMessage* out = message.add_layers();
    out->set_name(layer.name);
    out->set_type(layer.type);
    out->mutable_shape()->Add(layer.shape.begin(), layer.shape.end());
    out->set_parameters(layer.parameters);
    for (const PlanTensor& tensor : layer.tensors) {
      v1::PlanTensorMessage* part = out->add_tensors();
      part->set_name(tensor.name);
      part->set_elements(tensor.elements);
      part->set_learning_rate_multiplier(tensor.multipliers.learning_rate);
      part->set_weight_decay_multiplier(tensor.multipliers.weight_decay);
      part->set_trust_ratio(tensor.multipliers.trust_ratio);
    }
    out->set_scheme(std::string(scheme_name(layer.scheme)));
    out->set_ps_bytes(layer.ps_bytes);
    out->set_sfb_bytes(layer.sfb_bytes);
    out->set_reason(layer.reason);
  }
  message.set_chunk_bytes(plan.chunk_bytes);
  message.set_window_bytes(plan.window_bytes);
  message.mutable_chunks()->Reserve(static_cast<int>(plan.chunks.size()));
  for (const PlanChunk& chunk : plan.chunks) {
    v1::PlanChunkMessage* out = message.add_chunks();
    out->set_layer(chunk.layer.value());
    out->set_offset(chunk.offset);
    out->set_elements(chunk.elements);
    out->set_server(chunk.server.value());
  }
  return message;
}

absl::StatusOr<Plan> plan_from_message(const v1::PlanMessage& message) {
  Plan plan;
  plan.epoch = Epoch(message.epoch());
  plan.batch_size = message.batch_size();
  const auto wire_type = wire_dtype_from_name(message.wire_dtype());
  if (!wire_type) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan: the unknown wire dtype '", message.wire_dtype(), "'; known: fp32, bf16, fp16"));
  }
  plan.wire_type = *wire_type;
  // A running job of an earlier version, which a new coordinator continues, has none.
  const auto send_order =
      message.send_order().empty() ? SendOrder::kNeed : send_order_from_name(message.send_order());
  if (!send_order) {
    return absl::InvalidArgumentError(absl::StrCat("plan: the unknown send order '",
                                                   message.send_order(), "'; known: need, ready"));
  }
  plan.send_order = *send_order;
  const auto scopes = {NormScope::kNone, NormScope::kLayer, NormScope::kNetwork,
                       NormScope::kProgram};
  const auto* scope = std::find_if(scopes.begin(), scopes.end(), [&message](NormScope known) {
    return message.norm_scope() == norm_scope_name(known);
  });
  if (scope == scopes.end()) {
    return absl::InvalidArgumentError(absl::StrCat("plan: the unknown norm scope '",
                                                   message.norm_scope(),
                                                   "'; known: none, layer, network, program"));
  }
  plan.norm_scope = *scope;
  plan.worker_addresses.assign(message.worker_addresses().begin(),
                               message.worker_addresses().end());
  plan.server_addresses.assign(message.server_addresses().begin(),
                               message.server_addresses().end());
  for (const std::uint32_t leader : message.leaders()) plan.leaders.emplace_back(leader);
  plan.layers.reserve(static_cast<std::size_t>(message.layers_size()));
  for (const v1::PlanLayerMessage& layer : message.layers()) {
    PlanLayer out;
    out.name = layer.name();
    out.type = layer.type();
    out.shape.assign(layer.shape().begin(), layer.shape().end());
    out.parameters = layer.parameters();
    for (const v1::PlanTensorMessage& tensor : layer.tensors()) {
      out.tensors.push_back({.name = tensor.name(),
                             .elements = tensor.elements(),
                             .multipliers = {.learning_rate = tensor.learning_rate_multiplier(),
                                             .weight_decay = tensor.weight_decay_multiplier(),
                                             .trust_ratio = tensor.trust_ratio()}});
    }
    if (layer.scheme() == scheme_name(Scheme::kPs)) {
      out.scheme = Scheme::kPs;
    } else if (layer.scheme() == scheme_name(Scheme::kSfb)) {
      out.scheme = Scheme::kSfb;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("plan: layer ", layer.name(),
                                                     " has the unknown scheme '", layer.scheme(),
                                                     "'; known: ps, sfb"));
    }
    out.ps_bytes = layer.ps_bytes();
    out.sfb_bytes = layer.sfb_bytes();
    out.reason = layer.reason();
    plan.layers.push_back(std::move(out));
  }
  plan.chunk_bytes = message.chunk_bytes();
  if (message.window_bytes() != 0) plan.window_bytes = message.window_bytes();
  plan.chunks.reserve(static_cast<std::size_t>(message.chunks_size()));
  for (const v1::PlanChunkMessage& chunk : message.chunks()) {
    plan.chunks.push_back({.layer = LayerIndex(chunk.layer()),
                           .offset = chunk.offset(),
                           .elements = chunk.elements(),
                           .server = ServerIndex(chunk.server())});
  }
  POSEIDON_RETURN_IF_ERROR(validate(plan));
  return plan;
}

absl::StatusOr<Plan> plan_from_assignment(const v1::Assignment& assignment, AssignedRole role) {
  POSEIDON_ASSIGN_OR_RETURN(Plan plan, plan_from_message(assignment.plan()));
  const bool is_worker = role == AssignedRole::kWorker;
  const std::uint32_t places = is_worker ? plan.workers() : plan.servers();
  if (assignment.index() >= places) {
    return absl::InvalidArgumentError(absl::StrCat(
        "assigned as ", is_worker ? "worker " : "server ", assignment.index(), " of ", places));
  }
  const v1::StreamProofs& proofs = assignment.proofs();
  const auto take = [](const auto& numbers, std::size_t wanted, const char* what,
                       std::vector<std::uint64_t>& out) -> absl::Status {
    if (static_cast<std::size_t>(numbers.size()) != wanted) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the assignment has ", numbers.size(), " proofs ", what, ", and the plan has ", wanted,
          " of these: install the same Poseidon version "
          "everywhere"));
    }
    if (std::ranges::find(numbers, 0) != numbers.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the assignment has a proof 0 ", what));
    }
    out.assign(numbers.begin(), numbers.end());
    return absl::OkStatus();
  };
  POSEIDON_RETURN_IF_ERROR(
      take(proofs.expected(), plan.workers(), "of workers", plan.proofs.expected));
  if (!is_worker) return plan;
  POSEIDON_RETURN_IF_ERROR(
      take(proofs.to_servers(), plan.servers(), "for servers", plan.proofs.to_servers));
  POSEIDON_RETURN_IF_ERROR(
      take(proofs.to_workers(), plan.workers(), "for workers", plan.proofs.to_workers));
  return plan;
}

}  // namespace poseidon
