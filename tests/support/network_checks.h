#pragma once

// For tests: small networks of the large ones' blocks, whole passes through the executor, against
// PyTorch's golden values. block_golden_test.cc checks the CPU, tests/gpu a GPU; tests/gpu also
// uses the networks in tests of its own.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/engine/device.h"
#include "worker/engine/executor.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon::testing {

/// tests/golden/networks/blocks.json; empty (and an expectation failed) where it cannot be read.
nlohmann::json golden_blocks();
/// The parameters and the batch that the generator had.
void fill_golden_parameters(Executor& executor, const nlohmann::json& golden);
Batch golden_batch(const nlohmann::json& golden, const NetSpec& net);

/// "conv1.weight" and so on, after a backward.
std::map<std::string, std::vector<float>> gradients_by_name(Executor& executor);

/// Loss, all gradients, running statistics, loss and hits in tests: PyTorch's in double precision
/// (tests/golden/networks/generate.py), as near as float32 brings them.
void blocks_match_pytorch(const std::function<std::unique_ptr<Device>()>& make);

}  // namespace poseidon::testing
