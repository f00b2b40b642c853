#include "tests/sim/scenario.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/plan/tensor_parts.h"
#include "common/tensor/float16.h"
#include "common/tensor/scan.h"
#include "tests/support/toy_plan.h"

namespace poseidon::sim {
namespace {

double one_of(SplitMix64& random, std::initializer_list<double> choices) {
  return choices.begin()[random.below(choices.size())];
}

/// What is left of a value that went over the wire.
float over_the_wire(ElementType type, float value) {
  switch (type) {
    case ElementType::kBfloat16:
      return from_bfloat16(to_bfloat16(value));
    case ElementType::kFloat16:
      return from_float16(to_float16(value));
    default:
      return value;
  }
}

std::vector<float> summed_factors(const Scenario& s, const SimLayer& layer, Iteration iteration,
                                  std::span<const float> parameters) {
  const auto gradients = static_cast<std::size_t>(s.batch_size * layer.outputs);
  const auto inputs = static_cast<std::size_t>(s.batch_size * layer.inputs);
  std::vector<float> all_gradients(s.workers * gradients), all_inputs(s.workers * inputs);
  for (std::uint32_t rank = 0; rank < s.workers; ++rank) {
    fill_factors(rank, iteration, parameters,
                 std::span(all_gradients).subspan(rank * gradients, gradients),
                 std::span(all_inputs).subspan(rank * inputs, inputs));
  }
  return gradient_of(layer, {all_gradients, all_inputs});
}

std::vector<float> summed_gradients(const Scenario& s, Iteration iteration,
                                    std::span<const float> read) {
  std::vector<float> sum(read.size());
  for (std::size_t e = 0; e < sum.size(); ++e) {
    std::map<WorkerRank, float> of_group;  // by leader
    for (std::uint32_t rank = 0; rank < s.workers; ++rank) {
      const float g = over_the_wire(s.wire_type, gradient_value(rank, iteration, read[e], e));
      const WorkerRank leader = s.leaders.empty() ? WorkerRank(rank) : s.leaders[rank];
      const auto [group, is_first] = of_group.emplace(leader, g);
      if (!is_first) group->second += g;
    }
    for (const auto& [leader, group] : of_group) {
      const float g = over_the_wire(s.wire_type, group);
      sum[e] = leader == WorkerRank(0) ? g : sum[e] + g;
    }
  }
  return sum;
}

/// Any worker may be in any group, including groups of one.
std::vector<WorkerRank> draw_leaders(SplitMix64& random, std::uint32_t workers) {
  std::vector<WorkerRank> leaders;
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    const auto with = static_cast<std::uint32_t>(random.below(2 * rank + 1));
    leaders.push_back(with < rank ? leaders[with] : WorkerRank(rank));
  }
  return leaders;
}

/// Up to three tensors with multipliers; a layer by SFB has a matrix and perhaps a bias.
void draw_tensors(SplitMix64& random, SimLayer& layer) {
  if (random.below(2) == 0) return;
  std::vector<std::int64_t> sizes;
  if (layer.by_factors()) {
    sizes.push_back(layer.outputs * layer.inputs);
    if (layer.elements > sizes[0]) sizes.push_back(layer.outputs);
  } else {
    for (std::int64_t rest = layer.elements; rest > 0; rest -= sizes.back()) {
      const bool last = sizes.size() == 2;
      sizes.push_back(
          last ? rest
               : 1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(rest))));
    }
  }
  for (const std::int64_t size : sizes) {
    layer.tensors.push_back({.name = absl::StrCat("tensor", layer.tensors.size()),
                             .elements = size,
                             .multipliers = {.learning_rate = one_of(random, {1.0, 2.0, 0.5, 0.0}),
                                             .weight_decay = one_of(random, {1.0, 0.0, 3.0}),
                                             .trust_ratio = random.below(3) != 0}});
  }
}

}  // namespace

Scenario draw_scenario(std::uint64_t seed) {
  SplitMix64 random(mix_seed(seed, 1));
  Scenario s;
  s.workers = 1 + static_cast<std::uint32_t>(random.below(5));
  s.servers = 1 + static_cast<std::uint32_t>(random.below(4));
  const std::uint64_t layers = 1 + random.below(5);
  for (std::uint64_t i = 0; i < layers; ++i) {
    SimLayer& layer = s.layers.emplace_back();
    layer.elements = 1 + static_cast<std::int64_t>(random.below(60));
    if (random.below(2) == 0) continue;
    layer.outputs = 1 + static_cast<std::int64_t>(random.below(7));
    layer.inputs = 1 + static_cast<std::int64_t>(random.below(9));
    const bool bias = random.below(2) == 0;
    layer.elements = layer.outputs * layer.inputs + (bias ? layer.outputs : 0);
  }
  s.batch_size = 1 + static_cast<std::int64_t>(random.below(5));
  s.chunk_elements = 1 + static_cast<std::int64_t>(random.below(24));
  s.iterations = 3 + static_cast<Iteration>(random.below(6));
  s.sfb.iterations = s.iterations;
  s.sfb.piece_bytes = static_cast<std::int64_t>(sizeof(float) * (1 + random.below(24)));
  s.sfb.check_every = 1 + static_cast<Iteration>(random.below(4));
  s.optimizer.type = static_cast<OptimizerType>(random.below(4));
  const bool lars = s.optimizer.type == OptimizerType::kLars;
  s.optimizer.learning_rate = 0.05;
  s.optimizer.momentum =
      lars || s.optimizer.type == OptimizerType::kSgd ? one_of(random, {0.0, 0.9}) : 0.0;
  s.optimizer.nesterov = !lars && s.optimizer.momentum > 0.0 && random.below(2) == 0;
  s.optimizer.weight_decay = one_of(random, {0.0, 0.01});
  s.faults.min_delay = Nanoseconds(static_cast<std::int64_t>(random.below(1000)));
  s.faults.max_delay = s.faults.min_delay + Milliseconds(random.below(30));
  s.faults.cut = one_of(random, {0.0, 0.0, 0.005, 0.03});
  s.faults.duplicate = one_of(random, {0.0, 0.02, 0.2});
  s.faults.reorder = one_of(random, {0.0, 0.05, 0.5});
  s.max_compute = Milliseconds(static_cast<std::int64_t>(one_of(random, {0, 1, 20})));
  // From none at all (everybody waits for the rank before) to never reached.
  s.pending_limit_bytes = static_cast<std::int64_t>(one_of(random, {1, 100, 1e9}));
  // Half of the clusters send float32, a quarter each of the others.
  s.wire_type = static_cast<ElementType>(static_cast<int>(one_of(random, {1, 1, 2, 3})));
  for (SimLayer& layer : s.layers) draw_tensors(random, layer);
  // Never, mostly, and now and then.
  s.optimizer.clip_norm = one_of(random, {0.0, 0.0, 0.0, 0.1, 5.0});
  if (random.below(4) == 0) s.send_order = SendOrder::kReady;
  if (random.below(2) == 0 && norm_scope(s.optimizer) == NormScope::kNone) {
    s.leaders = draw_leaders(random, s.workers);
  }
  return s;
}

std::string describe(const Scenario& s) {
  const auto by_factors = std::ranges::count_if(s.layers, &SimLayer::by_factors);
  return absl::StrCat(
      s.workers, " workers (led by [",
      absl::StrJoin(s.leaders, ", ",
                    [](std::string* out, WorkerRank rank) { absl::StrAppend(out, rank.value()); }),
      "]), ", s.servers, " servers, ", s.layers.size(), " layers (", by_factors,
      " by SFB), pieces of ", s.sfb.piece_bytes, " bytes, chunks of ", s.chunk_elements, ", ",
      s.iterations, " iterations, optimizer ", static_cast<int>(s.optimizer.type), ", clipped to ",
      s.optimizer.clip_norm, ", cut ", s.faults.cut, ", duplicate ", s.faults.duplicate,
      ", reorder ", s.faults.reorder, ", holding at most ", s.pending_limit_bytes,
      " bytes, wire type ", std::string(wire_dtype_name(s.wire_type)), ", sent as in \"",
      std::string(send_order_name(s.send_order)), "\"");
}

float initial_value(std::size_t layer, std::size_t element) {
  return static_cast<float>(std::sin(static_cast<double>(layer * 1000 + element)));
}

float gradient_value(std::uint32_t rank, Iteration iteration, float parameter,
                     std::size_t element) {
  SplitMix64 noise(mix_seed(mix_seed(rank, static_cast<std::uint64_t>(iteration)), element));
  return std::sin(parameter * 3.0f) + noise.uniform() - 0.5f;
}

void fill_factors(std::uint32_t rank, Iteration iteration, std::span<const float> parameters,
                  std::span<float> output_gradient, std::span<float> input) {
  const auto fill = [&](std::span<float> values, std::uint32_t salt) {
    for (std::size_t e = 0; e < values.size(); ++e) {
      values[e] = gradient_value(rank + salt, iteration, parameters[e % parameters.size()], e);
    }
  };
  fill(output_gradient, 0);
  fill(input, 1000);
}

std::vector<float> gradient_of(const SimLayer& layer, const StackedFactors& factors) {
  const auto outputs = static_cast<std::size_t>(layer.outputs);
  const auto inputs = static_cast<std::size_t>(layer.inputs);
  std::vector<float> gradient(static_cast<std::size_t>(layer.elements), 0.0f);
  for (std::size_t row = 0; row < factors.inputs.size() / inputs; ++row) {
    for (std::size_t m = 0; m < outputs; ++m) {
      const float output_gradient = factors.output_gradients[row * outputs + m];
      for (std::size_t n = 0; n < inputs; ++n) {
        gradient[m * inputs + n] += output_gradient * factors.inputs[row * inputs + n];
      }
      if (gradient.size() > outputs * inputs) gradient[outputs * inputs + m] += output_gradient;
    }
  }
  return gradient;
}

std::vector<TensorSquares> squares_of(const Scenario& s, const SimLayer& layer,
                                      std::span<const float> gradient,
                                      std::span<const float> parameters) {
  PlanLayer plan;
  plan.parameters = layer.elements;
  plan.tensors = layer.tensors;
  const double scale = static_cast<double>(1.0f / static_cast<float>(s.workers));
  std::vector<TensorSquares> squares(tensor_count(plan));
  const std::int64_t chunk = layer.by_factors() ? layer.elements : s.chunk_elements;
  for (std::int64_t at = 0; at < layer.elements; at += chunk) {
    for (const TensorPart& part : tensor_parts(plan, at, std::min(chunk, layer.elements - at))) {
      if (part.multipliers.frozen()) continue;
      const std::size_t begin = static_cast<std::size_t>(at) + part.begin;
      squares[part.tensor].gradient +=
          square_sum(gradient.subspan(begin, part.size)) * scale * scale;
      if (s.optimizer.type != OptimizerType::kLars) continue;
      squares[part.tensor].parameters += square_sum(parameters.subspan(begin, part.size));
    }
  }
  return squares;
}

void step_layer(const Scenario& s, const SimLayer& layer, Iteration iteration,
                std::span<const float> gradient, const std::vector<TensorSquares>& squares,
                double all_gradients, std::span<float> parameters, std::span<float> state0,
                std::span<float> state1) {
  std::size_t at = 0;
  std::size_t tensor = 0;
  const auto step = [&](std::size_t size, const StepMultipliers& multipliers) {
    const auto part = [&](auto all) { return all.empty() ? all : all.subspan(at, size); };
    apply_optimizer(
        make_optimizer_step(s.optimizer, iteration, 1.0f / static_cast<float>(s.workers),
                            multipliers, {all_gradients, squares[tensor]}),
        part(gradient), part(parameters), part(parameters), part(state0), part(state1));
    at += size;
    ++tensor;
  };
  if (layer.tensors.empty()) step(gradient.size(), {});
  for (const PlanTensor& of_layer : layer.tensors) {
    step(static_cast<std::size_t>(of_layer.elements), of_layer.multipliers);
  }
}

Plan make_plan(const Scenario& s) {
  std::vector<std::int64_t> elements;
  for (const SimLayer& layer : s.layers) elements.push_back(layer.elements);
  Plan plan = testing_support::toy_plan(s.workers, s.servers, elements, s.chunk_elements);
  plan.batch_size = s.batch_size;
  plan.wire_type = s.wire_type;
  plan.send_order = s.send_order;
  plan.norm_scope = norm_scope(s.optimizer);
  plan.leaders = s.leaders;
  for (std::uint32_t rank = 0; rank < s.workers; ++rank) {
    plan.worker_addresses[rank] = absl::StrCat("worker", rank);
  }
  for (std::uint32_t l = 0; l < s.layers.size(); ++l) {
    const SimLayer& layer = s.layers[l];
    plan.layers[l].tensors = layer.tensors;
    if (layer.by_factors()) {
      testing_support::send_by_factors(plan, LayerIndex(l), layer.outputs, layer.inputs);
    }
  }
  POSEIDON_CHECK(validate(plan).ok(), "a plan that nodes would take");
  return plan;
}

NetworkState initial_state(const Scenario& s) {
  NetworkState state;
  const int slots = optimizer_state_slots(s.optimizer);
  for (std::size_t l = 0; l < s.layers.size(); ++l) {
    const auto n = static_cast<std::size_t>(s.layers[l].elements);
    std::vector<float>& parameters = state.parameters.emplace_back(n);
    for (std::size_t e = 0; e < n; ++e) parameters[e] = initial_value(l, e);
    state.state0.emplace_back(slots > 0 ? n : 0);
    state.state1.emplace_back(slots > 1 ? n : 0);
  }
  return state;
}

std::vector<std::vector<float>> as_read(const Scenario& s, const NetworkState& state) {
  std::vector<std::vector<float>> read = state.parameters;
  for (std::size_t l = 0; l < read.size(); ++l) {
    if (s.layers[l].by_factors()) continue;
    for (float& value : read[l]) value = over_the_wire(s.wire_type, value);
  }
  return read;
}

void train_step(const Scenario& s, Iteration iteration, NetworkState& state) {
  const std::vector<std::vector<float>> read = as_read(s, state);
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<TensorSquares>> squares;
  double all_gradients = 0.0;
  for (std::size_t l = 0; l < s.layers.size(); ++l) {
    gradients.push_back(s.layers[l].by_factors()
                            ? summed_factors(s, s.layers[l], iteration, read[l])
                            : summed_gradients(s, iteration, read[l]));
    squares.push_back(squares_of(s, s.layers[l], gradients[l], state.parameters[l]));
    for (const TensorSquares& tensor : squares[l]) all_gradients += tensor.gradient;
  }
  for (std::size_t l = 0; l < s.layers.size(); ++l) {
    step_layer(s, s.layers[l], iteration, gradients[l], squares[l], all_gradients,
               state.parameters[l], state.state0[l], state.state1[l]);
  }
}

Reference::Reference(const Scenario& s) {
  NetworkState state = initial_state(s);
  versions_.push_back(as_read(s, state));
  for (Iteration i = 0; i < s.iterations; ++i) {
    train_step(s, i, state);
    versions_.push_back(as_read(s, state));
  }
  exact_ = std::move(state.parameters);
}

}  // namespace poseidon::sim
