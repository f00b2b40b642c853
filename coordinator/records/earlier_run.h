#pragma once

// How a finished run goes aside when another begins in its directory: next_aside_step decides,
// set_finished_run_aside does it. Whoever is killed between two steps leaves what the next call
// takes up, whatever it was; a file is never nowhere, and a model never beside another's files.
//
// Before: run_directory.cc, as a run begins. After: the new run's files, with no other's beside
// them. One thread at a time per run directory.

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"

namespace poseidon {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
/// What a damaged one had after the damage.
inline constexpr const char* kCutMetricsFile = "metrics.jsonl.cut";
/// What tells of a model, besides the metrics.
inline constexpr const char* kCompanions[] = {"plan.json", "plan.recommended.json", "job.json"};
/// A finished run's files, when another takes its place.
inline constexpr const char* kEarlierFolder = "earlier";
/// Here they gather, the model last, before the run that lies in kEarlierFolder makes room.
inline constexpr const char* kIncomingFolder = "earlier/incoming";

/// What becomes of the metrics where they are.
enum class MetricsAside {
  kMove,
  kCopy,  ///< the run that begins writes on in them
};

struct AsideStep {
  enum class Kind { kMove, kCopy, kRemove };
  Kind kind = Kind::kMove;
  std::string from;     ///< in the run directory
  std::string to = {};  ///< likewise; "" for kRemove
  bool operator==(const AsideStep&) const = default;
};

/// `there`: those of a run's files, and kIncomingFolder, that are in the run directory, in
/// kEarlierFolder and in kIncomingFolder, as "earlier/job.json". Nothing: all is done. Pure.
std::optional<AsideStep> next_aside_step(const std::set<std::string>& there, MetricsAside metrics);

/// Step after step. Nothing to do where no finished model lies and no earlier call was interrupted.
/// FAILED_PRECONDITION names the file, where it does not go and why; a later call goes on there.
absl::Status set_finished_run_aside(const std::filesystem::path& run_directory,
                                    MetricsAside metrics);

}  // namespace poseidon
