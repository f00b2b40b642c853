#pragma once

// Tells a declared model from a network.
//
// Called by: common/job/job.h and models/net/model_layout.h. Calls: nothing.

#include "nlohmann/json.hpp"

namespace poseidon {

/// Whether `model`, as in a job, is declared by a program outside, which has the network and the
/// data and trains with it: models/net/model_layout.h has the form. Such a job has no "data",
/// "init", "micro_batches", "precision" and "test_every_iterations".
inline bool is_declared_model(const nlohmann::json& model) {
  return model.is_object() && model.contains("declared");
}

}  // namespace poseidon
