#include "coordinator/planning/time_rule.h"

#include <algorithm>
#include <utility>

#include "common/plan/chunking.h"
#include "coordinator/planning/local_groups.h"
#include "coordinator/planning/planner.h"

namespace poseidon {
namespace {

std::vector<Scheme> with_free(const TimeRuleInput& input, Scheme scheme) {
  std::vector<Scheme> schemes = input.by_bytes;
  for (const std::size_t layer : input.free) schemes[layer] = scheme;
  return schemes;
}

std::vector<double> shares_for(const LinkModel& cluster, const std::vector<ModelLayer>& layers,
                               const std::vector<Scheme>& schemes) {
  double ps_bytes = 0.0, factor_bytes = 0.0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    (schemes[i] == Scheme::kPs ? ps_bytes : factor_bytes) +=
        schemes[i] == Scheme::kPs ? layers[i].bytes : layers[i].factor_bytes;
  }
  return free_bandwidth_shares(cluster, ps_bytes, factor_bytes);
}

/// Every layer that may go by SFB by `fully_connected`, whether or not it is free to choose.
std::vector<Scheme> all_by(const std::vector<ModelLayer>& layers, Scheme fully_connected) {
  std::vector<Scheme> schemes;
  for (const ModelLayer& layer : layers) {
    schemes.push_back(layer.sfb_applies ? fully_connected : Scheme::kPs);
  }
  return schemes;
}

/// The byte rule of each layer, whatever the job asks for.
std::vector<Scheme> fewest_bytes(const TimeRuleInput& input) {
  std::vector<Scheme> schemes;
  for (const PlannerLayer& layer : *input.layers) {
    const SchemeCosts costs = scheme_costs(
        layer, input.batch_size,
        {.workers = static_cast<std::uint32_t>(input.worker_addresses.size()),
         .servers = static_cast<std::uint32_t>(input.server_addresses.size()),
         .contributors = count_contributors(input.leaders, input.worker_addresses.size())},
        input.wire_type);
    schemes.push_back(choose_scheme(layer, costs, SyncSpec{}).scheme);
  }
  return schemes;
}

}  // namespace

std::int64_t chunk_bytes_on_wire(std::int64_t chunk_bytes, ElementType wire_type) {
  return chunk_bytes / kElementBytes * static_cast<std::int64_t>(element_bytes(wire_type));
}

std::vector<ModelLayer> model_layers(const std::vector<PlannerLayer>& layers,
                                     std::int64_t batch_size, std::size_t workers,
                                     ElementType wire_type, const Calibration& calibration) {
  std::vector<ModelLayer> result;
  const auto batch = static_cast<double>(batch_size);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const PlannerLayer& layer = layers[i];
    ModelLayer& costs = result.emplace_back();
    costs.forward_s = calibration.layers[i].forward_s;
    costs.backward_s = calibration.layers[i].backward_s;
    costs.bytes =
        static_cast<double>(layer.parameters) * static_cast<double>(element_bytes(wire_type));
    if (!layer.is_fully_connected) continue;
    const auto m = static_cast<double>(layer.shape[0]), n = static_cast<double>(layer.shape[1]);
    costs.sfb_applies = true;
    costs.factor_bytes = batch * (m + n) * kElementBytes;
    // Backward is two products of one size: of the weight's gradient and of the input's.
    costs.sfb_backward_s = 0.5 * costs.backward_s;
    costs.rebuild_s =
        2.0 * static_cast<double>(workers) * batch * m * n / calibration.device_ops_per_s;
  }
  return result;
}

TimeRuleResult apply_time_rule(const TimeRuleInput& input, const SearchOptions& options) {
  const Calibration& calibration = *input.calibration;
  const std::vector<ModelLayer> layers = model_layers(
      *input.layers, input.batch_size, input.worker_addresses.size(), input.wire_type, calibration);
  const LinkModel cluster =
      make_link_model(input.worker_addresses, input.server_addresses, input.leaders, calibration);
  const std::vector<std::vector<Scheme>> starts = {input.by_bytes, with_free(input, Scheme::kPs),
                                                   with_free(input, Scheme::kSfb)};
  // To compare with; the job may ask for other schemes and leave nothing free.
  const std::vector<Scheme> by_bytes = fewest_bytes(input);
  const std::vector<Scheme> all_ps = all_by(layers, Scheme::kPs);
  const std::vector<Scheme> all_sfb = all_by(layers, Scheme::kSfb);

  // Which shares are best depends on the schemes and the other way round; few shares are worth a
  // try. A server that fills its NIC to the last byte has no slack for what comes late, so the way
  // half there from equal shares is one of them.
  std::vector<std::vector<double>> shares;
  const auto consider = [&shares](std::vector<double> candidate) {
    if (std::find(shares.begin(), shares.end(), candidate) != shares.end()) return;
    shares.push_back(std::move(candidate));
  };
  const std::vector<double> equal = free_bandwidth_shares(cluster, 0.0, 0.0);
  for (const std::vector<Scheme>& start : starts) {
    std::vector<double> candidate = shares_for(cluster, layers, start);
    consider(candidate);
    if (candidate == equal) continue;
    for (std::size_t i = 0; i < equal.size(); ++i) candidate[i] = 0.5 * (candidate[i] + equal[i]);
    consider(std::move(candidate));
  }
  consider(equal);
  SearchOptions each = options;
  each.work_limit /= static_cast<std::int64_t>(shares.size());

  TimeRuleResult result;
  std::optional<SearchResult> best;
  std::optional<IterationModel> best_model;
  result.prediction.by_bytes_s = result.prediction.all_ps_s = result.prediction.all_sfb_s = 0.0;
  const auto keep_least = [](double& least, double value) {
    least = least > 0.0 ? std::min(least, value) : value;
  };
  for (std::vector<double>& candidate : shares) {
    IterationModel model = make_iteration_model(
        layers, cluster, candidate, chunk_bytes_on_wire(input.chunk_bytes, input.wire_type),
        input.window_bytes);
    const auto predicted_s = [&](const std::vector<Scheme>& schemes) {
      return play_iteration(model, schemes).iteration_s;
    };
    keep_least(result.prediction.by_bytes_s, predicted_s(by_bytes));
    keep_least(result.prediction.all_ps_s, predicted_s(all_ps));
    keep_least(result.prediction.all_sfb_s, predicted_s(all_sfb));
    SearchResult found = search_schemes(model, starts, input.free, each);
    if (best && found.iteration_s >= best->iteration_s) continue;
    best = std::move(found);
    best_model = std::move(model);
    result.shares = std::move(candidate);
  }

  const IterationPrediction played = play_iteration(*best_model, best->schemes);
  result.prediction.iteration_s = played.iteration_s;
  result.prediction.compute_s = played.compute_s;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerPrediction& layer = result.layers.emplace_back();
    layer.ps_s = link_busy_s(*best_model, layers[i], Scheme::kPs);
    if (layers[i].sfb_applies) layer.sfb_s = link_busy_s(*best_model, layers[i], Scheme::kSfb);
    layer.rebuild_s = layers[i].rebuild_s;
    layer.stall_s = played.stall_s[i];
    layer.sync_s = played.sync_s[i];
  }
  result.schemes = std::move(best->schemes);
  result.flipped_s = std::move(best->flipped_s);
  return result;
}

}  // namespace poseidon
