#include "coordinator/planning/calibrate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "coordinator/planning/time_rule.h"

namespace poseidon {
namespace {

/// How long an iteration takes with the schemes of `plan`, its cut, and the shares of its chunks.
double predict(const PlannerInput& input, const Plan& plan) {
  std::vector<Scheme> schemes;
  for (const PlanLayer& layer : plan.layers) schemes.push_back(layer.scheme);
  std::vector<double> shares(plan.servers(), 0.0);
  double elements = 0.0;
  for (const PlanChunk& chunk : plan.chunks) {
    shares[chunk.server.value()] += static_cast<double>(chunk.elements);
    elements += static_cast<double>(chunk.elements);
  }
  for (double& share : shares) share = elements > 0.0 ? share / elements : 1.0 / plan.servers();
  const LinkModel cluster = make_link_model(plan.worker_addresses, plan.server_addresses,
                                            plan.leaders, *input.calibration);
  return play_iteration(
             make_iteration_model(
                 model_layers(input.layers, input.batch_size, plan.workers(), plan.wire_type,
                              *input.calibration),
                 cluster, shares,
                 chunk_bytes_on_wire(
                     plan.chunk_bytes > 0 ? plan.chunk_bytes : input.sync.largest_chunk_bytes(),
                     plan.wire_type),
                 plan.window_bytes),
             schemes)
      .iteration_s;
}

}  // namespace

Calibration assume_calibration(const std::vector<PlannerLayer>& layers, std::int64_t batch_size,
                               std::size_t workers, std::size_t servers,
                               const AssumedMachines& machines) {
  Calibration calibration{
      .measured = false,
      .layers = {},
      .device_ops_per_s = machines.device_ops_per_s.value_or(kDefaultDeviceOpsPerS),
      .server_sum_bytes_per_s = machines.server_sum_bytes_per_s,
      .latency_s = machines.latency_s,
      .workers = {},
      .servers = {}};
  const NicSpeed nic{.send_bytes_per_s = machines.bandwidth_bytes_per_s,
                     .receive_bytes_per_s = machines.bandwidth_bytes_per_s};
  calibration.workers.assign(workers, nic);
  calibration.servers.assign(servers, nic);

  double multiply_adds = 0.0, parameters = 0.0;
  for (const PlannerLayer& layer : layers) {
    multiply_adds += static_cast<double>(layer.multiply_adds);
    parameters += static_cast<double>(layer.parameters);
  }
  const auto weight = [&](const PlannerLayer& layer) {
    return static_cast<double>(multiply_adds > 0.0 ? layer.multiply_adds : layer.parameters);
  };
  const double total = multiply_adds > 0.0 ? multiply_adds : parameters;
  const auto batch = static_cast<double>(batch_size);
  const double operations = 3.0 * 2.0 * total * batch;
  if (machines.images_per_s && multiply_adds > 0.0 && !machines.device_ops_per_s) {
    // A rebuild is a product like those of the layers, so a worker that trains slowly rebuilds
    // slowly too.
    calibration.device_ops_per_s = operations / batch * *machines.images_per_s;
  }
  const double compute_s = machines.images_per_s ? batch / *machines.images_per_s
                                                 : operations / calibration.device_ops_per_s;
  for (const PlannerLayer& layer : layers) {
    const double forward_s = compute_s * weight(layer) / total / 3.0;
    calibration.layers.push_back(
        {.name = layer.name, .forward_s = forward_s, .backward_s = 2.0 * forward_s});
  }
  return calibration;
}

absl::StatusOr<ReplanDecision> consider_replan(const PlannerInput& input, const Plan& in_force,
                                               const std::vector<LayerTimes>& measured,
                                               ReplanState state, const ReplanOptions& options) {
  if (!input.calibration || !in_force.prediction) {
    return absl::InvalidArgumentError(
        "planning again: the plan in force was made without a calibration; calibrate first");
  }
  PlannerInput corrected = input;
  corrected.calibration->layers = measured;
  corrected.calibration->measured = true;
  POSEIDON_RETURN_IF_ERROR(check_calibration(corrected));

  double assumed_s = 0.0, difference_s = 0.0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const LayerTimes& assumed = input.calibration->layers[i];
    assumed_s += assumed.forward_s + assumed.backward_s;
    difference_s += std::abs(measured[i].forward_s - assumed.forward_s) +
                    std::abs(measured[i].backward_s - assumed.backward_s);
  }
  ReplanDecision decision{.state = state,
                          .drift = difference_s / std::max(assumed_s, 1e-9),
                          .plan = std::nullopt,
                          .now_s = 0.0,
                          .better_s = 0.0,
                          .reason = ""};
  if (decision.drift < 0.5 * options.far) decision.state.far_for = 0;
  if (decision.drift > options.far) ++decision.state.far_for;
  if (decision.state.far_for < options.patience) return decision;

  decision.state.far_for = 0;
  POSEIDON_ASSIGN_OR_RETURN(Plan better, make_plan(corrected));
  decision.now_s = predict(corrected, in_force);
  decision.better_s = better.prediction->iteration_s;
  const std::string drifted = absl::StrFormat(
      "computing differs by %.0f%% from what the plan assumed", 100.0 * decision.drift);
  const std::string times =
      absl::StrCat(seconds_text(decision.better_s), " instead of ", seconds_text(decision.now_s));
  if (decision.better_s > decision.now_s * (1.0 - options.least_gain)) {
    decision.reason = absl::StrCat(drifted, "; the best plan now would take ", times,
                                   ", not worth an interruption");
    return decision;
  }
  decision.reason = absl::StrCat(drifted, "; planned anew: ", times, " per iteration");
  decision.plan = std::move(better);
  return decision;
}

}  // namespace poseidon
