#include "cli/terminal/outcome.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/terminal/at_signal.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr const char* kExitCodePayload = "poseidon/exit-code";

/// Where the plan rests on measurements, or is told to be another one than the last run's: the same
/// job may have another result then. "" elsewhere.
std::string plan_text(const v1::GetStatusResponse& status) {
  const bool was_measured = status.predicted_iteration_seconds() > 0.0;
  const bool is_told = absl::StrContains(status.plan_basis(), "differs from ");
  return was_measured || is_told ? absl::StrCat("plan         ", status.plan_basis(), "\n") : "";
}

}  // namespace

std::string outcome_text(const v1::GetStatusResponse& status) {
  const std::uint64_t from = std::min(status.training_from(), status.iterations());
  std::string text = absl::StrFormat(
      "\ntraining     %s iterations in %.1f s\nfinal loss   %s\n",
      from == 0
          ? absl::StrCat(status.iterations())
          : absl::StrCat("the last ", status.iterations() - from, " of ", status.iterations()),
      status.training_seconds(), format_measure(status.loss()));
  if (!std::isnan(status.test_accuracy())) {
    absl::StrAppend(&text, "test         accuracy ", format_measure(status.test_accuracy()),
                    ", loss ", format_measure(status.test_loss()), " after ",
                    status.tested_iteration(), " iterations\n");
  }
  absl::StrAppend(&text, plan_text(status), "model        ", status.run_directory(),
                  "/model.safetensors\n", "metrics      ", status.run_directory(),
                  "/metrics.jsonl\n");
  return printable_lines(text);
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "poseidon: warning: %s\n", printable(warning).c_str());
  }
}

std::string stopped_text(const v1::GetStatusResponse& status) {
  std::string text = absl::StrCat("\nstopped      after ", iterations_done(status),
                                  " iterations: ", status.message(), "\n");
  if (!std::isnan(status.loss())) {
    absl::StrAppend(&text, "last loss    ", format_measure(status.loss()), "\n");
  }
  absl::StrAppend(&text, plan_text(status), "files        ", status.run_directory(), "\n");
  return printable_lines(text);
}

absl::Status with_exit_code(int code, const std::string& message) {
  absl::Status status = absl::CancelledError(message);
  status.SetPayload(kExitCodePayload, absl::Cord(absl::StrCat(code)));
  return status;
}

std::optional<int> own_exit_code(const absl::Status& status) {
  int code = 0;
  const auto payload = status.GetPayload(kExitCodePayload);
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &code)) return std::nullopt;
  return code;
}

std::string restore_command(CoordinatorClient& client, const std::string& job_id) {
  const auto list = client.list_checkpoints(kCallTimeout);
  if (!list.ok()) return "";
  std::string newest;  // the list is sorted, the oldest first
  for (const v1::CheckpointInfo& info : list->committed()) {
    if (info.job_id() == job_id) newest = info.id();
  }
  if (newest.empty()) return "";
  return absl::StrCat("poseidon checkpoint restore ", client.options(), " --checkpoint ", newest);
}

absl::Status report_outcome(const v1::GetStatusResponse& status, const std::string& go_on) {
  if (status.state() == "done") {
    write_stdout(outcome_text(status));
    return absl::OkStatus();
  }
  if (status.state() == "stopped") {
    write_stdout(stopped_text(status));
    if (!go_on.empty()) write_stdout(printable_lines(absl::StrCat(kGoOnWith, go_on, "\n")));
    return with_exit_code(kExitStopped, "");
  }
  return absl::AbortedError(absl::StrCat("job ", status.job(), " failed after ",
                                         iterations_done(status), " iterations: ", status.message(),
                                         "; run directory ", status.run_directory()));
}

absl::Status follow_job(CoordinatorClient& client, const v1::SubmitResponse& accepted,
                        const FollowOptions& options) {
  write_stdout(absl::StrCat("job ", printable(accepted.job_id()), " accepted; run directory ",
                            printable(accepted.run_directory()), "\n"));
  if (!options.wait) {
    write_stdout(
        absl::StrCat("follow it with: poseidon status ", printable(client.options()), "\n"));
    return absl::OkStatus();
  }
  WatchOptions watch;
  watch.silence_limit = options.coordinator_away;
  watch.pause = [](Milliseconds time) {
    std::this_thread::sleep_for(time);
    return absl::OkStatus();
  };
  watch.write = write_stdout;
  // Who ends the waiting may think that it has ended the job.
  const AtSignal at_signal(
      {.words = absl::StrCat("\nthe job goes on; see it with: poseidon status ",
                             printable(client.options()), ", end it with: poseidon stop ",
                             printable(client.options()), "\n"),
       .remove = ""});
  ProgressOptions progress = progress_options_of_stdout();
  progress.waiting_hint = absl::StrCat(
      "; start the missing ones (poseidon-worker, poseidon-server) with --coordinator ",
      client.address());
  POSEIDON_ASSIGN_OR_RETURN(const v1::GetStatusResponse last,
                            watch_job(client, accepted.job_id(), progress, watch));
  const bool may_go_on = last.state() == "stopped";
  return report_outcome(last, may_go_on ? restore_command(client, accepted.job_id()) : "");
}

}  // namespace poseidon
