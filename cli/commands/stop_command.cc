#include "cli/commands/stop_command.h"

#include <chrono>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/terminal/outcome.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr Milliseconds kStopPollInterval{100};
/// After this time the command prints what it waits for, and repeats it at most this often when it
/// has changed.
constexpr Nanoseconds kSayInterval = std::chrono::seconds(10);
/// Beyond the checkpoint: for the last files, and for a coordinator that is away for a moment.
constexpr Nanoseconds kEndTimeout = std::chrono::seconds(60);
/// Each request to another coordinator restarts the patience. A coordinator that answers only now
/// and then counts as the same one.
constexpr int kMostTimesAskedAgain = 3;

bool is_over(const v1::GetStatusResponse& status, const std::string& job_id) {
  return status.job_id() != job_id || has_ended(status);
}

/// Prints a line, without characters from other machines that a terminal cannot show.
void say(const std::string& text) { write_stdout(printable_lines(text) + "\n"); }

}  // namespace

absl::StatusOr<std::string> stop_outcome(const v1::EndJobResponse& asked, bool is_to_be_saved,
                                         const v1::GetStatusResponse& end) {
  const std::string files = absl::StrCat("; its files are in ", asked.run_directory());
  if (end.job_id() != asked.job_id()) {
    return absl::StrCat("job ", asked.job_id(), " has ended, and another job was submitted since",
                        files);
  }
  if (end.state() == "done") {
    return absl::StrCat("job ", asked.job_id(), " is done: it completed all of its ",
                        end.iterations(), " iterations", files);
  }
  const std::string text =
      absl::StrCat("job ", asked.job_id(), " has ended after ", iterations_done(end),
                   " iterations: ", end.message(), files);
  if (is_to_be_saved && end.unsaved()) {
    return absl::AbortedError(
        absl::StrCat(text, "; its progress since the last checkpoint is not saved"));
  }
  return text;
}

absl::Status run_stop(const StopOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  POSEIDON_RETURN_IF_ERROR(client->wait_for_coordinator(options.connect_timeout).status());
  v1::EndJobRequest request;
  request.set_job_id(options.job);
  request.set_checkpoint_within_s(static_cast<std::uint32_t>(options.checkpoint_within_s));
  POSEIDON_ASSIGN_OR_RETURN(const v1::EndJobResponse asked, client->end_job(request, kCallTimeout));
  if (asked.waits()) {
    say(absl::StrCat("job ", asked.job_id(), " ends when its final checkpoint is saved"));
  }
  request.set_job_id(asked.job_id());
  const SystemClock clock;
  const Nanoseconds patience = std::chrono::seconds(options.checkpoint_within_s) + kEndTimeout;
  Nanoseconds end = clock.now() + patience;
  bool was_away = false;
  int asked_again = 0;
  std::string last_said;
  Nanoseconds say_next = clock.now() + kSayInterval;
  while (true) {
    const absl::StatusOr<v1::GetStatusResponse> status = client->get_status(kStatusTimeout);
    was_away = was_away || !status.ok();
    if (status.ok() && is_over(*status, asked.job_id())) {
      POSEIDON_ASSIGN_OR_RETURN(
          const std::string text,
          stop_outcome(asked, /*is_to_be_saved=*/options.checkpoint_within_s > 0, *status));
      say(text);
      const std::string go_on = restore_command(*client, asked.job_id());
      if (status->state() == "stopped" && !go_on.empty()) say(absl::StrCat(kGoOnWith, go_on));
      return absl::OkStatus();
    }
    // It may be another process, which continues the job and does not know our request.
    if (status.ok() && was_away && asked_again < kMostTimesAskedAgain &&
        client->end_job(request, kCallTimeout).ok()) {
      was_away = false;
      ++asked_again;
      end = clock.now() + patience;
      say("the coordinator was unreachable; asking it again");
    }
    if (status.ok() && status->message() != last_said && clock.now() >= say_next) {
      last_said = status->message();
      say_next = clock.now() + kSayInterval;
      say(last_said);
    }
    if (clock.now() >= end) {
      return absl::DeadlineExceededError(absl::StrCat(
          "job ", asked.job_id(),
          " was told to end but has not ended, according to the coordinator at ", client->address(),
          ": ", status.ok() ? status->message() : std::string(status.status().message())));
    }
    std::this_thread::sleep_for(kStopPollInterval);
  }
}

}  // namespace poseidon
