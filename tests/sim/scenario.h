#pragma once

// Derives a scenario from a seed of the simulation, and computes its result in a single process:
// the reference for every worker.
//
// Called by: main.cc, with seeds; cluster_sim.cc runs the scenario. Calls: nothing.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/plan/plan.h"
#include "common/tensor/element_type.h"
#include "common/tensor/optimizer.h"
#include "common/tensor/scan.h"
#include "common/transport/memory_transport.h"
#include "sync/routes/sfb_route.h"

namespace poseidon::sim {

/// A layer by PS has elements; one by SFB also a matrix, with or without a bias.
struct SimLayer {
  std::int64_t elements = 1;
  std::int64_t outputs = 0, inputs = 0;  ///< 0: by PS
  std::vector<PlanTensor> tensors;       ///< as in PlanLayer
  bool by_factors() const { return outputs > 0; }
};

/// Everything that a seed decides.
struct Scenario {
  std::uint32_t workers = 1, servers = 1;
  std::vector<SimLayer> layers;
  std::int64_t batch_size = 1;
  SfbOptions sfb;
  std::int64_t chunk_elements = 1;
  Iteration iterations = 1;
  OptimizerSpec optimizer;
  MemoryFaults faults;
  Nanoseconds max_compute{0};
  std::int64_t pending_limit_bytes = 0;
  ElementType wire_type = ElementType::kFloat32;
  SendOrder send_order = SendOrder::kNeed;
  std::vector<WorkerRank> leaders;  ///< as in Plan
};

Scenario draw_scenario(std::uint64_t seed);
std::string describe(const Scenario& scenario);
Plan make_plan(const Scenario& scenario);

float initial_value(std::size_t layer, std::size_t element);

/// Any function of rank, iteration and the parameters read will do; this one is not linear, so an
/// error in one step shows in all that follow.
float gradient_value(std::uint32_t rank, Iteration iteration, float parameter, std::size_t element);

/// Any function likewise.
void fill_factors(std::uint32_t rank, Iteration iteration, std::span<const float> parameters,
                  std::span<float> output_gradient, std::span<float> input);

/// The gradient that factors stand for.
std::vector<float> gradient_of(const SimLayer& layer, const StackedFactors& factors);

/// Squares of a layer's tensors, for the sum of all workers' gradients: chunk by chunk where the
/// layer goes by PS.
std::vector<TensorSquares> squares_of(const Scenario& scenario, const SimLayer& layer,
                                      std::span<const float> gradient,
                                      std::span<const float> parameters);

/// The step of a whole layer, tensor by tensor, in place; replicas must all make it alike.
/// `squares` of it, and `all_gradients` of the network, are looked at where the optimizer does.
void step_layer(const Scenario& scenario, const SimLayer& layer, Iteration iteration,
                std::span<const float> gradient, const std::vector<TensorSquares>& squares,
                double all_gradients, std::span<float> parameters, std::span<float> state0,
                std::span<float> state1);

/// All that training changes, by layer.
struct NetworkState {
  std::vector<std::vector<float>> parameters, state0, state1;
};
NetworkState initial_state(const Scenario& scenario);
/// As workers read them: of a layer by PS once they went over the wire.
std::vector<std::vector<float>> as_read(const Scenario& scenario, const NetworkState& state);
/// One iteration of all workers.
void train_step(const Scenario& scenario, Iteration iteration, NetworkState& state);

/// What one process computes: parameters of every layer after 0, 1, 2, ... steps, as they are read:
/// of a layer by PS once they went over the wire.
class Reference {
 public:
  explicit Reference(const Scenario& scenario);
  const std::vector<float>& at(Iteration version, std::size_t layer) const {
    return versions_[static_cast<std::size_t>(version)][layer];
  }
  /// After the last iteration, as the optimizer has them.
  const std::vector<float>& exact(std::size_t layer) const { return exact_[layer]; }

 private:
  std::vector<std::vector<std::vector<float>>> versions_;
  std::vector<std::vector<float>> exact_;
};

}  // namespace poseidon::sim
