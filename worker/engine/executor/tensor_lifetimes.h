#pragma once

// Computes which tensors a pass over a network needs, their lifetimes, and which may share memory.
// Pure.
//
// Called by: network_executor.h, with a network's layers in forward order; memory_plan.h then
// places the buffers. Calls: nothing.
//
// Forward runs the layers in order, backward in the opposite order. An output lives until the last
// layer that reads it has run: forward, or backward where that layer's backward reads its inputs
// (backward_needs). An output's gradient lives from the first backward that writes it to its own
// layer's. Elementwise layers work in place in both passes if no other layer needs the overwritten
// data.

#include <cstdint>
#include <span>
#include <vector>

#include "models/net/net.h"
#include "worker/engine/executor/memory_plan.h"
#include "worker/engine/layout.h"

namespace poseidon {

/// What the backward of a layer type reads besides its output's gradient; it binds all devices.
struct BackwardNeeds {
  bool inputs = false;
  bool output = false;
};
BackwardNeeds backward_needs(LayerType type);

/// Whether the operator accepts its first input as the place of its output, and its output's
/// gradient as the place of its inputs' gradients (of several at once where it hands it on as it
/// is, which sums do), where both lie in one layout; likewise.
bool works_in_place(LayerType type);

inline constexpr int kNoBuffer = -1;

/// Indices are into TensorPlan::buffers.
struct LayerTensors {
  bool runs_backward = false;
  int output = kNoBuffer;
  int output_gradient = kNoBuffer;  ///< none for losses and without backward
  struct InputGradient {
    int written = kNoBuffer;  ///< what the operator writes; none if not needed
    int added_to =
        kNoBuffer;  ///< to which the executor then adds it, if another wrote there before
  };
  std::vector<InputGradient> input_gradients;  ///< per input
};

/// The size of a layer's output, and of its gradient.
struct OutputSpace {
  std::int64_t bytes = 0;  ///< of the batch
  Layout layout = Layout::kPlain;
};

struct TensorPlan {
  std::vector<LayerTensors> layers;
  std::vector<BufferUse> buffers;
};

/// Layer i runs forward at step i, backward at step 2 * layers - i; results are read at step
/// `layers` between the two. Inputs and output gradients of fully connected layers live until after
/// the last step, because their factors are fetched then. `outputs`: per layer.
TensorPlan plan_tensors(std::span<const LayerSpec> layers, std::span<const OutputSpace> outputs);

}  // namespace poseidon
