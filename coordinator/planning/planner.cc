#include "coordinator/planning/planner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/nearest.h"
#include "common/base/text.h"
#include "common/plan/chunking.h"
#include "common/plan/plan_pin.h"
#include "coordinator/planning/local_groups.h"
#include "coordinator/planning/message_sizes.h"
#include "coordinator/planning/placement.h"
#include "coordinator/planning/time_rule.h"

namespace poseidon {
namespace {

// What validate(Plan) would say too, but before chunking works with the values.
absl::Status check_input(const PlannerInput& input) {
  if (input.worker_addresses.empty()) return absl::InvalidArgumentError("planning needs a worker");
  if (input.server_addresses.empty()) return absl::InvalidArgumentError("planning needs a server");
  if (input.sync.largest_chunk_bytes() < kElementBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sync.chunk_bytes is ", input.sync.largest_chunk_bytes(), "; it must hold an element"));
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
  if (input.calibration) POSEIDON_RETURN_IF_ERROR(check_calibration(input));
  return check_sync(input.layers, input.sync);
}

std::string pinned_reason(const PlanLayer& layer) {
  const bool ps = layer.scheme == Scheme::kPs;
  return absl::StrCat("sync.plan asks for it: ", ps ? "PS, " : "SFB, ",
                      bytes_text(static_cast<double>(ps ? layer.ps_bytes : layer.sfb_bytes)),
                      " per node and iteration");
}

std::string time_reason(Scheme scheme, double iteration_s, double flipped_s) {
  const Scheme other = scheme == Scheme::kPs ? Scheme::kSfb : Scheme::kPs;
  const auto name = [](Scheme of) { return of == Scheme::kPs ? "PS" : "SFB"; };
  const std::string best = seconds_text(iteration_s);
  if (std::isnan(flipped_s)) {
    return absl::StrCat("shortest iteration found, ", best, ", has it by ", name(scheme));
  }
  return absl::StrCat("shortest iteration: ", best, " by ", name(scheme), ", ",
                      seconds_text(flipped_s), " by ", name(other));
}

struct TimeChoice {
  TimeRuleResult result;
  double shortest_s = 0.0;  ///< the shortest iteration found, which may be another choice's
  /// The shortest iteration would save this share, too little to change to it.
  std::optional<double> gain_left;
  std::string earlier_job;  ///< whose schemes these are; "": those of the byte rule
};

/// What a measurement says beyond its noise: see kLeastMeasuredGain.
TimeChoice choose_by_time(const TimeRuleInput& rule) {
  TimeRuleResult best = apply_time_rule(rule);
  const double shortest_s = best.prediction.iteration_s;
  if (rule.calibration->measured && best.schemes != rule.by_bytes) {
    TimeRuleInput as_it_is = rule;
    as_it_is.free.clear();
    TimeRuleResult kept = apply_time_rule(as_it_is);
    const double gain = 1.0 - shortest_s / kept.prediction.iteration_s;
    if (gain < kLeastMeasuredGain) return {std::move(kept), shortest_s, gain, ""};
  }
  return {std::move(best), shortest_s, std::nullopt, ""};
}

/// The layers that may be chosen, by the schemes of an earlier run; nullopt where it lacks one.
std::optional<std::vector<Scheme>> as_in(const EarlierPlan& earlier, const TimeRuleInput& rule) {
  std::vector<Scheme> schemes = rule.by_bytes;
  for (const std::size_t layer : rule.free) {
    const auto found = earlier.schemes.find((*rule.layers)[layer].name);
    if (found == earlier.schemes.end()) return std::nullopt;
    schemes[layer] = found->second;
  }
  return schemes;
}

void take_sizes(const MessageSizes& sizes, TimeRuleInput& rule) {
  rule.chunk_bytes = sizes.chunk_bytes;
  rule.window_bytes = sizes.window_bytes;
}

/// Takes the schemes of an earlier run, with the sizes of messages that are best for them, where
/// what was chosen is hardly shorter. `rule` has the sizes to choose from.
void prefer_earlier(const EarlierPlan& earlier, TimeRuleInput rule, bool any_chunks,
                    TimeRuleInput& chosen, TimeChoice& choice) {
  std::optional<std::vector<Scheme>> schemes = as_in(earlier, rule);
  if (!rule.calibration->measured || !schemes || *schemes == choice.result.schemes) return;
  rule.by_bytes = *std::move(schemes);
  rule.free.clear();
  take_sizes(choose_message_sizes(rule, any_chunks), rule);
  TimeRuleResult again = apply_time_rule(rule);
  const double gain = 1.0 - choice.shortest_s / again.prediction.iteration_s;
  if (gain >= kLeastMeasuredGain) return;
  chosen.chunk_bytes = rule.chunk_bytes;
  chosen.window_bytes = rule.window_bytes;
  choice = {std::move(again), choice.shortest_s, gain, earlier.job_id};
}

void write_reasons(const TimeChoice& choice, const std::vector<std::size_t>& free, Plan& plan) {
  for (const std::size_t i : free) {
    std::string& reason = plan.layers[i].reason;
    if (!choice.earlier_job.empty()) {
      const bool ps = choice.result.schemes[i] == Scheme::kPs;
      reason = absl::StrFormat(
          "as in %s: %s; the shortest iteration would save %.1f%% in all, less than a measurement "
          "tells",
          choice.earlier_job, ps ? "PS" : "SFB", 100.0 * std::max(0.0, *choice.gain_left));
    } else if (choice.gain_left) {
      absl::StrAppend(&reason,
                      absl::StrFormat("; the shortest iteration would save %.1f%% in all, less "
                                      "than a measurement tells",
                                      100.0 * *choice.gain_left));
    } else {
      const TimeRuleResult& result = choice.result;
      reason = time_reason(result.schemes[i], result.prediction.iteration_s, result.flipped_s[i]);
    }
  }
}

/// Predicts and, under cost=time, chooses schemes and the sizes of messages; returns the servers'
/// shares.
std::vector<double> plan_by_time(const PlannerInput& input, Plan& plan) {
  TimeRuleInput rule{.layers = &input.layers,
                     .batch_size = input.batch_size,
                     .worker_addresses = input.worker_addresses,
                     .server_addresses = input.server_addresses,
                     .leaders = plan.leaders,
                     .chunk_bytes = plan.chunk_bytes,
                     .window_bytes = plan.window_bytes,
                     .wire_type = plan.wire_type,
                     .calibration = &*input.calibration,
                     .by_bytes = {},
                     .free = {}};
  const bool chooses = input.sync.cost == "time" && input.sync.plan.is_null();
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    rule.by_bytes.push_back(plan.layers[i].scheme);
    const bool may_choose = chooses && input.layers[i].is_fully_connected &&
                            asked_scheme(input.layers[i], input.sync) == "auto";
    if (may_choose) rule.free.push_back(i);
  }
  // Norms are summed chunk by chunk: their last bits must not depend on measurements.
  const bool any_chunks = !input.sync.chunk_bytes && input.norm_scope == NormScope::kNone;
  const TimeRuleInput unsized = rule;
  const auto take_sizes_for = [&](std::vector<Scheme> schemes) {
    TimeRuleInput sized = unsized;
    sized.by_bytes = std::move(schemes);
    take_sizes(choose_message_sizes(std::move(sized), any_chunks), rule);
  };
  // Which sizes are best depends on the schemes and the other way round: first for the byte rule's
  // schemes, then once more for the schemes that were chosen with these sizes.
  if (chooses) take_sizes_for(rule.by_bytes);
  TimeChoice choice = choose_by_time(rule);
  if (choice.result.schemes != rule.by_bytes) {
    take_sizes_for(choice.result.schemes);
    choice.result = apply_time_rule(rule);
    choice.shortest_s = choice.result.prediction.iteration_s;
  }
  if (chooses && input.earlier) {
    prefer_earlier(*input.earlier, unsized, any_chunks, rule, choice);
  }
  plan.chunk_bytes = rule.chunk_bytes;
  plan.window_bytes = rule.window_bytes;
  write_reasons(choice, rule.free, plan);
  TimeRuleResult& result = choice.result;
  for (const std::size_t i : rule.free) plan.layers[i].scheme = result.schemes[i];
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    plan.layers[i].prediction = result.layers[i];
  }
  plan.prediction = result.prediction;
  plan.calibration = input.calibration;
  return std::move(result.shares);
}

void place(const std::vector<double>& shares, Plan& plan) {
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    if (plan.layers[i].scheme == Scheme::kSfb) continue;  // no server owns it
    const LayerIndex index(static_cast<std::uint32_t>(i));
    for (const ChunkRange& range : split_into_chunks(plan.layers[i].parameters, plan.chunk_bytes)) {
      plan.chunks.push_back({index, range.offset, range.elements, ServerIndex(0)});
      bytes.push_back(range.elements * kElementBytes);
    }
  }
  const std::vector<ServerIndex> owners = place_chunks(bytes, shares);
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) plan.chunks[i].server = owners[i];
}

}  // namespace

SchemeCosts scheme_costs(const PlannerLayer& layer, std::int64_t batch_size, NodeNumbers nodes,
                         ElementType wire_type) {
  POSEIDON_CHECK(nodes.workers > 0 && nodes.servers > 0 && nodes.contributors > 0,
                 "costs need nodes");
  // In 128 bits: batch and sizes are the user's, and a product of three of them must not wrap.
  __extension__ using Wide = __int128;
  const Wide weight =
      layer.is_fully_connected ? Wide{layer.shape[0]} * layer.shape[1] : Wide{layer.parameters};
  const Wide p1 = nodes.workers;
  const Wide p2 = nodes.servers;
  const Wide groups = nodes.contributors;
  const Wide limit = INT64_MAX;
  const Wide wire_bytes = static_cast<std::int64_t>(element_bytes(wire_type));
  SchemeCosts costs;
  const Wide ps = (2 * weight * (groups + p2 - 2) * wire_bytes + p2 - 1) / p2;
  costs.ps_bytes = static_cast<std::int64_t>(std::min(ps, limit));
  if (layer.is_fully_connected) {
    const Wide factors =
        2 * Wide{batch_size} * (Wide{layer.shape[0]} + layer.shape[1]) * kElementBytes;
    const Wide sfb = (factors * p1 * p1 * (groups - 1) + groups * groups - 1) / (groups * groups);
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
  const std::string ps = bytes_text(static_cast<double>(costs.ps_bytes));
  if (!costs.sfb_applies) {
    return {Scheme::kPs, absl::StrCat("a ", layer.type, " layer has no factors to send: PS, ", ps,
                                      " per node and iteration")};
  }
  const std::string sfb = bytes_text(static_cast<double>(costs.sfb_bytes));
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

namespace {

std::string layer_text(const std::vector<std::int64_t>& shape, std::int64_t parameters) {
  return absl::StrCat(absl::StrJoin(shape, "x"), " with ", parameters, " parameters");
}

/// What the pin itself says: it may have been edited by hand.
absl::Status check_pinned_chunks(const PlanPin& pin) {
  if (pin.chunks.empty()) return absl::OkStatus();
  Plan plan;
  plan.server_addresses.resize(pin.servers);
  for (const PinnedLayer& layer : pin.layers) {
    PlanLayer& spec = plan.layers.emplace_back();
    spec.name = layer.name;
    spec.parameters = layer.parameters;
    spec.scheme = layer.scheme;
  }
  plan.chunks = pin.chunks;
  const absl::Status status = validate_chunks(plan);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("sync.plan: its chunks do not fit its layers and schemes (", status.message(),
                   "); remove \"chunks\" from it, and they are placed anew"));
}

absl::Status check_pin(const std::vector<PlannerLayer>& layers, const PlanPin& pin) {
  constexpr const char* kRemedy =
      "; take the plan.json of a run of this network, or remove sync.plan";
  for (std::size_t i = 0; i < std::max(layers.size(), pin.layers.size()); ++i) {
    if (i >= pin.layers.size() || i >= layers.size() || pin.layers[i].name != layers[i].name) {
      const auto name = [i](const auto& of) {
        return i < of.size() ? absl::StrCat("\"", of[i].name, "\"") : "nothing";
      };
      return absl::InvalidArgumentError(absl::StrCat("sync.plan: parameter layer ", i + 1, " is ",
                                                     name(layers), " in the network and ",
                                                     name(pin.layers), " in the plan", kRemedy));
    }
    const PinnedLayer& pinned = pin.layers[i];
    const PlannerLayer& layer = layers[i];
    if (pinned.shape != layer.shape || pinned.parameters != layer.parameters) {
      return absl::InvalidArgumentError(
          absl::StrCat("sync.plan: layer ", layer.name, " is ",
                       layer_text(layer.shape, layer.parameters), " in the network and ",
                       layer_text(pinned.shape, pinned.parameters), " in the plan", kRemedy));
    }
    if (pinned.scheme == Scheme::kSfb && !layer.is_fully_connected) {
      return absl::InvalidArgumentError(
          absl::StrCat("sync.plan: layer ", layer.name, " goes by SFB there, but is a ", layer.type,
                       " layer without factors; change its scheme to \"ps\""));
    }
  }
  return check_pinned_chunks(pin);
}

}  // namespace

absl::Status check_sync(const std::vector<PlannerLayer>& layers, const SyncSpec& sync) {
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
  if (sync.plan.is_null()) return absl::OkStatus();
  POSEIDON_ASSIGN_OR_RETURN(const PlanPin pin, plan_pin_from_json(sync.plan, "sync.plan"));
  return check_pin(layers, pin);
}

absl::Status check_calibration(const PlannerInput& input) {
  const Calibration& calibration = *input.calibration;
  POSEIDON_RETURN_IF_ERROR(validate(calibration, "planning"));
  if (calibration.workers.size() != input.worker_addresses.size() ||
      calibration.servers.size() != input.server_addresses.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "planning: the calibration is of ", calibration.workers.size(), " workers and ",
        calibration.servers.size(), " servers, the cluster has ", input.worker_addresses.size(),
        " and ", input.server_addresses.size(), "; calibrate again"));
  }
  const auto same_name = [](const LayerTimes& times, const PlannerLayer& layer) {
    return times.name == layer.name;
  };
  if (!std::equal(calibration.layers.begin(), calibration.layers.end(), input.layers.begin(),
                  input.layers.end(), same_name)) {
    return absl::InvalidArgumentError(
        "planning: the calibration's layers are not those of this network; calibrate again");
  }
  return absl::OkStatus();
}

namespace {

std::vector<WorkerRank> choose_leaders(const PlannerInput& input,
                                       const std::optional<PlanPin>& pin) {
  if (!input.sync.local_aggregation || input.norm_scope != NormScope::kNone ||
      input.sync.wire_dtype == ElementType::kFloat16) {
    return {};
  }
  const std::size_t workers = input.worker_addresses.size();
  std::optional<std::vector<WorkerRank>> kept = input.leaders;
  if (!kept && pin && (pin->workers == 0 || pin->workers == workers)) kept = pin->leaders;
  bool fits = kept && (kept->empty() || kept->size() == workers);
  for (std::uint32_t rank = 0; fits && rank < kept->size(); ++rank) {
    const std::uint32_t leader = (*kept)[rank].value();
    fits = leader == rank || !input.worker_addresses[leader].empty();
  }
  if (fits) return *kept;
  return input.worker_machines.empty()
             ? group_by_machine(input.worker_addresses, input.server_addresses)
             : group_by_machine(input.worker_machines, input.server_machines);
}

}  // namespace

absl::StatusOr<Plan> make_plan(const PlannerInput& input) {
  POSEIDON_RETURN_IF_ERROR(check_input(input));
  Plan plan;
  plan.epoch = input.epoch;
  plan.batch_size = input.batch_size;
  plan.wire_type = input.sync.wire_dtype;
  plan.send_order = input.sync.send_order;
  plan.norm_scope = input.norm_scope;
  plan.chunk_bytes = input.sync.largest_chunk_bytes();
  plan.worker_addresses = input.worker_addresses;
  plan.server_addresses = input.server_addresses;
  std::optional<PlanPin> pin;
  if (!input.sync.plan.is_null()) {
    POSEIDON_ASSIGN_OR_RETURN(pin, plan_pin_from_json(input.sync.plan, "sync.plan"));
  }
  plan.leaders = choose_leaders(input, pin);
  const NodeNumbers nodes{.workers = plan.workers(),
                          .servers = plan.servers(),
                          .contributors = count_contributors(plan.leaders, plan.workers())};
  for (const PlannerLayer& layer : input.layers) {
    const SchemeCosts costs = scheme_costs(layer, input.batch_size, nodes, plan.wire_type);
    SchemeChoice choice = choose_scheme(layer, costs, input.sync);
    plan.layers.push_back({.name = layer.name,
                           .type = layer.type,
                           .shape = layer.shape,
                           .parameters = layer.parameters,
                           .tensors = layer.tensors,
                           .scheme = choice.scheme,
                           .ps_bytes = costs.ps_bytes,
                           .sfb_bytes = costs.sfb_bytes,
                           .reason = std::move(choice.reason),
                           .prediction = std::nullopt});
  }
  if (pin) {
    // Pieces of factors are of this size too, whatever chunks the pin has.
    if (pin->chunk_bytes > 0 && !input.sync.chunk_bytes) plan.chunk_bytes = pin->chunk_bytes;
    if (pin->window_bytes > 0) plan.window_bytes = pin->window_bytes;
    for (std::size_t i = 0; i < plan.layers.size(); ++i) {
      plan.layers[i].scheme = pin->layers[i].scheme;
      plan.layers[i].reason = pinned_reason(plan.layers[i]);
    }
  }
  std::vector<double> shares(plan.servers(), 1.0 / plan.servers());
  if (input.calibration) shares = plan_by_time(input, plan);
  if (pin && pin->servers == plan.servers() && !pin->chunks.empty()) {
    plan.chunks = std::move(pin->chunks);
  } else {
    place(shares, plan);
  }
  POSEIDON_RETURN_IF_ERROR(validate(plan));
  return plan;
}

}  // namespace poseidon
