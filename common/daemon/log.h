#pragma once

// The process's log: one line per event to stderr, as text or JSON. Code logs with spdlog; this
// file formats lines, adds context to each and drops excess lines.
//
// Called by: common/daemon/daemon.h; nodes set the context. Calls: spdlog, common/base/log_limit.h.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace poseidon {

struct LogOptions {
  std::string level = "info";   ///< trace, debug, info, warning, error, off
  std::string format = "text";  ///< text: for people; json: one object per line
};

/// Installs our logger as spdlog's default, with `name` (the daemon) in each line. Call once,
/// before any other thread starts. INVALID_ARGUMENT for an unknown level or format.
absl::Status start_log(std::string_view name, const LogOptions& options);

/// Logs, as an error, why the process ends. Returns false and writes nothing when the log was not
/// started or its level hides errors.
bool log_last_words(std::string_view words);

/// The node, job and epoch of the process; known parts appear in each line.
struct LogContext {
  std::uint64_t node = 0;   ///< NodeId; 0: has not joined
  std::string job;          ///< its id; "": none
  std::uint64_t epoch = 0;  ///< of the job
};

// Each changes its part of the context of all following lines. Any thread.
void set_log_node(std::uint64_t node);
void set_log_job(std::string_view job, std::uint64_t epoch);  ///< "" and 0 when the job is over
LogContext log_context();

/// One line of the JSON log, without the line end: "time" (ISO 8601, UTC, milliseconds), "level",
/// "daemon", "pid", "message", and where known "node", "job", "epoch". Bytes that are not UTF-8
/// become U+FFFD. Pure.
std::string json_log_line(std::string_view time, std::string_view level, std::string_view daemon,
                          std::int64_t pid, const LogContext& context, std::string_view message);

/// The context in a line of text: " (node 3, job digits-1, epoch 7)", or "". Pure.
std::string log_context_text(const LogContext& context);

}  // namespace poseidon
