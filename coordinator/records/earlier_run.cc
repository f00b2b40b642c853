#include "coordinator/records/earlier_run.h"

#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/file_io.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

using Kind = AsideStep::Kind;

/// Of the metrics, while they are copied.
constexpr const char* kHalfCopy = "earlier/incoming/metrics.jsonl.half";

std::string in(const char* folder, const char* name) { return absl::StrCat(folder, "/", name); }

/// All that tells of a model.
std::vector<const char*> files_beside_model() {
  std::vector<const char*> names(std::begin(kCompanions), std::end(kCompanions));
  names.push_back(kMetricsFile);
  return names;
}

absl::Status not_kept(const fs::path& run_directory, const std::string& file,
                      const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot keep the model of the run that ended in ", run_directory.string(), ": ",
                   file, " does not go to ", (run_directory / kEarlierFolder).string(), ": ", why,
                   "; choose another --run-dir"));
}

absl::StatusOr<std::set<std::string>> files_there(const fs::path& run_directory) {
  std::vector<const char*> names = files_beside_model();
  names.push_back(kModelFile);
  std::vector<std::string> wanted{kIncomingFolder, kHalfCopy};
  for (const char* name : names) {
    wanted.insert(wanted.end(), {name, in(kEarlierFolder, name), in(kIncomingFolder, name)});
  }
  std::set<std::string> there;
  for (std::string& file : wanted) {
    std::error_code error;
    const fs::file_status status = fs::status(run_directory / file, error);
    // What is below a file is not there either: create_folder says so where it matters.
    const bool missing = status.type() == fs::file_type::not_found;
    if (error && !missing) return not_kept(run_directory, file, error.message());
    if (!missing) there.insert(std::move(file));
  }
  return there;
}

absl::Status take(const AsideStep& step, const fs::path& run_directory) {
  const fs::path from = run_directory / step.from;
  const fs::path to = run_directory / step.to;
  std::error_code error;
  switch (step.kind) {
    case Kind::kRemove:
      fs::remove(from, error);
      break;
    case Kind::kMove:
      fs::rename(from, to, error);
      break;
    case Kind::kCopy:  // half a copy must not pass for one
      fs::copy_file(from, run_directory / kHalfCopy, fs::copy_options::overwrite_existing, error);
      if (!error) fs::rename(run_directory / kHalfCopy, to, error);
      break;
  }
  return error ? not_kept(run_directory, step.from, error.message()) : absl::OkStatus();
}

}  // namespace

std::optional<AsideStep> next_aside_step(const std::set<std::string>& there, MetricsAside metrics) {
  const auto move = [](std::string from, std::string to) {
    return AsideStep{Kind::kMove, std::move(from), std::move(to)};
  };
  // All have come: the run before makes room, its model last.
  if (there.contains(in(kIncomingFolder, kModelFile))) {
    for (const char* name : files_beside_model()) {
      const std::string older = in(kEarlierFolder, name);
      if (there.contains(older)) return AsideStep{Kind::kRemove, older};
    }
    return move(in(kIncomingFolder, kModelFile), in(kEarlierFolder, kModelFile));
  }
  if (there.contains(kModelFile)) {
    for (const char* name : kCompanions) {
      if (there.contains(name)) return move(name, in(kIncomingFolder, name));
    }
    if (there.contains(kMetricsFile)) {
      const std::string to = in(kIncomingFolder, kMetricsFile);
      if (metrics == MetricsAside::kMove) return move(kMetricsFile, to);
      if (!there.contains(to)) return AsideStep{Kind::kCopy, kMetricsFile, to};
    }
    return move(kModelFile, in(kIncomingFolder, kModelFile));
  }
  for (const char* name : files_beside_model()) {
    const std::string come = in(kIncomingFolder, name);
    if (there.contains(come)) return move(come, in(kEarlierFolder, name));
  }
  for (const char* left : {kHalfCopy, kIncomingFolder}) {
    if (there.contains(left)) return AsideStep{Kind::kRemove, left};
  }
  return std::nullopt;
}

absl::Status set_finished_run_aside(const fs::path& run_directory, MetricsAside metrics) {
  bool begun = false;
  while (true) {
    POSEIDON_ASSIGN_OR_RETURN(const std::set<std::string> there, files_there(run_directory));
    const std::optional<AsideStep> step = next_aside_step(there, metrics);
    if (!step) break;
    if (!begun) {
      POSEIDON_RETURN_IF_ERROR(create_folder(run_directory / kIncomingFolder));
      begun = true;
    }
    POSEIDON_RETURN_IF_ERROR(take(*step, run_directory));
  }
  if (begun) {
    spdlog::warn("{} holds a finished run: its files are in {} from now on", run_directory.string(),
                 (run_directory / kEarlierFolder).string());
  }
  return absl::OkStatus();
}

}  // namespace poseidon
