#pragma once

// What a program says of one step.
//
// Called by: sync/client/sync_client.h, with the program's call; sync/routes/ps_route.h, which puts
// it into totals. Calls: nothing.

#include <vector>

#include "common/tensor/optimizer.h"

namespace poseidon {

struct ProgramRates {
  bool ahead = false;           ///< given before the step's first gradient: servers need not wait
  double gradient_scale = 1.0;  ///< a factor of the mean gradient
  std::vector<std::vector<StepRates>> tensors;  ///< by LayerIndex, the tensors of each layer
};

}  // namespace poseidon
