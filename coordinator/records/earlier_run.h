#pragma once

// Moves a finished run aside when another begins in its directory: next_aside_step decides,
// set_finished_run_aside moves. After a crash between two steps the next call continues. No file is
// ever lost, and a model never lies beside another run's files.
//
// Called by: run_directory.cc, when a run begins. Calls: the file system. One thread at a time per
// run directory.

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"

namespace poseidon {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
/// The part of a damaged metrics file after the damage.
inline constexpr const char* kCutMetricsFile = "metrics.jsonl.cut";
/// Of a run that somebody stopped: which checkpoint its model is of, and where it goes on.
inline constexpr const char* kStoppedFile = "stopped.json";
/// The files that belong to a model, besides the metrics.
inline constexpr const char* kCompanions[] = {"plan.json", "plan.recommended.json", "job.json",
                                              kStoppedFile};
/// Folder for a finished run's files when another run replaces it.
inline constexpr const char* kEarlierFolder = "earlier";
/// Folder where they are collected, the model last, before they replace the run in kEarlierFolder.
inline constexpr const char* kIncomingFolder = "earlier/incoming";

/// The treatment of the metrics in the run directory.
enum class MetricsAside {
  kMove,
  kCopy,  ///< the new run appends to them
};

struct AsideStep {
  enum class Kind { kMove, kCopy, kRemove };
  Kind kind = Kind::kMove;
  std::string from;     ///< in the run directory
  std::string to = {};  ///< likewise; "" for kRemove
  bool operator==(const AsideStep&) const = default;
};

/// `there`: those of a run's files, and kIncomingFolder, that are in the run directory, in
/// kEarlierFolder and in kIncomingFolder, as "earlier/job.json". nullopt: all is done. Pure.
std::optional<AsideStep> next_aside_step(const std::set<std::string>& there, MetricsAside metrics);

/// Executes all steps. Does nothing when there is no finished model and no interrupted earlier
/// call. FAILED_PRECONDITION names the file, its destination and the reason; a later call continues
/// there.
absl::Status set_finished_run_aside(const std::filesystem::path& run_directory,
                                    MetricsAside metrics);

}  // namespace poseidon
