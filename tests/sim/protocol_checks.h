#pragma once

// The invariants of protocol_sim.h about the files of a run: checkpoints, metrics, the model. Each
// returns "" or the violation. Pure except for the files they read.

#include <filesystem>
#include <functional>
#include <string>

#include "common/checkpoint/checkpoint.h"
#include "common/job/job.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/truth.h"

namespace poseidon::sim {

/// The disk with this identity; null when it is lost for good.
using DiskOf = std::function<const SimDisk*(const std::string& identity)>;

/// Whether each store has its pieces of a committed checkpoint, as the truth says they are.
std::string check_checkpoint(const CheckpointManifest& manifest, const Truth& truth,
                             const DiskOf& disk_of);
/// Each line once, in order, and true.
/// `missing_lines`: iterations that need no line, as who could tell of them was lost.
std::string check_metrics(const std::string& metrics, const Course& course, const JobSpec& job,
                          const std::set<Iteration>& missing_lines);
std::string check_model(const std::filesystem::path& model, const Course& course,
                        const JobSpec& job);

}  // namespace poseidon::sim
