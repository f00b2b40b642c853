#pragma once

// Compares the jobs that the workers of one program declare. Pure.
//
// Called by: coordinator/cluster/submissions.h. Calls: models/net/model_layout.h.

#include <cstdint>
#include <string>

namespace poseidon {

/// A job with a declared model, as a worker's program gives it.
struct DeclaredJob {
  std::string json;  ///< valid (resolve_job)
  std::uint32_t workers = 0;
  std::uint32_t servers = 0;
};

/// The first difference, for people: "model: layer 3, fc2: tensor weight has shape 10x64 here,
/// 10x32 there"; "optimizer is {...} here, {...} there". "" when the jobs are equal, whatever the
/// order of their keys.
std::string declared_difference(const DeclaredJob& here, const DeclaredJob& there);

}  // namespace poseidon
