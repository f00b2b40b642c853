#include "cli/terminal/checkpoint_format.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/status_format.h"
#include "common/base/text.h"
#include "common/wire/snapshot.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;

/// ISO 8601, UTC: "2026-05-01T12:30:00Z".
std::string time_text(std::int64_t unix_s) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(unix_s), absl::UTCTimeZone());
}

Json to_json(const v1::CheckpointInfo& info) {
  Json json = {{"id", info.id()},
               {"job", info.job()},
               {"job_id", info.job_id()},
               {"iteration", info.iteration()},
               {"committed", info.committed()},
               {"bytes", nullptr},
               {"time", nullptr},
               {"loss", nullptr},
               {"workers", info.workers()},
               {"run_directory", info.run_directory()}};
  if (info.has_loss()) json["loss"] = info.loss();
  if (info.committed()) {
    json["bytes"] = info.bytes();
    json["time"] = time_text(info.time_unix_s());
  } else {
    json["reason"] = info.reason();
  }
  return json;
}

std::vector<std::string> to_row(const v1::CheckpointInfo& info) {
  const bool committed = info.committed();
  return {info.id(),
          info.job_id(),
          absl::StrCat(info.iteration()),
          info.has_loss() ? format_measure(info.loss()) : "-",
          committed ? bytes_text(static_cast<double>(info.bytes())) : "-",
          committed ? time_text(info.time_unix_s()) : "-",
          committed ? "yes" : absl::StrCat("no: ", info.reason())};
}

/// Whether it is of the same epoch and at least as far.
bool covers(const v1::CheckpointInfo& info, const v1::RequestCheckpointResponse& asked) {
  const std::optional<SnapshotId> snapshot = parse_snapshot_name(info.id());
  return snapshot && info.job_id() == asked.job_id() &&
         snapshot_epoch(*snapshot).value() == asked.epoch() &&
         info.iteration() >= asked.iteration();
}

}  // namespace

nlohmann::json checkpoints_to_json(const v1::ListCheckpointsResponse& list) {
  Json json = Json::array();
  for (const v1::CheckpointInfo& info : list.committed()) json.push_back(to_json(info));
  if (list.has_failed()) json.push_back(to_json(list.failed()));
  if (list.has_making()) json.push_back(to_json(list.making()));
  return json;
}

std::string checkpoints_to_text(const v1::ListCheckpointsResponse& list) {
  std::vector<std::vector<std::string>> table = {
      {"ID", "JOB", "ITERATION", "LOSS", "BYTES", "TIME", "COMMITTED"}};
  for (const v1::CheckpointInfo& info : list.committed()) table.push_back(to_row(info));
  if (list.has_failed()) table.push_back(to_row(list.failed()));
  if (list.has_making()) table.push_back(to_row(list.making()));
  return table.size() == 1 ? "no checkpoint yet\n" : format_table(table);
}

absl::StatusOr<std::optional<std::string>> save_outcome(const v1::RequestCheckpointResponse& asked,
                                                        const v1::ListCheckpointsResponse& list) {
  const auto is_own = [&asked](const v1::CheckpointInfo& info) {
    return info.asked() && covers(info, asked);
  };
  for (const v1::CheckpointInfo& info : list.committed()) {
    if (is_own(info)) return info.id();
  }
  if (list.has_making() && is_own(list.making())) return std::nullopt;
  if (list.has_failed() && is_own(list.failed())) {
    return absl::AbortedError(
        absl::StrCat("checkpoint ", list.failed().id(), " failed: ", list.failed().reason()));
  }
  // It is neither in the making nor there: another coordinator took over, which does not know of
  // it, or newer ones have taken its place (checkpoint.keep). One of those is as good.
  for (const v1::CheckpointInfo& info : list.committed()) {
    if (covers(info, asked)) return info.id();
  }
  if (list.job_id() != asked.job_id() || list.ended()) {
    return absl::AbortedError(
        absl::StrCat("job ", asked.job_id(), " ended before the checkpoint was complete; now ",
                     list.state().empty() ? "there is no job" : list.state()));
  }
  if (list.epoch() != asked.epoch()) {
    return absl::AbortedError(absl::StrCat("a node was lost before the checkpoint was whole, and ",
                                           list.state(), ": ask for one again"));
  }
  return std::nullopt;
}

}  // namespace poseidon
