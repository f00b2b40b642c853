#include "cli/terminal/watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

/// A coordinator that is silent for longer is worth a line.
constexpr Nanoseconds kSilenceRemark = std::chrono::seconds(5);

/// It will say the same next time. All else (a connection that is cut, a coordinator that is just
/// stopping or starting) is silence.
bool refuses(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnimplemented(status) || absl::IsFailedPrecondition(status) ||
         absl::IsInvalidArgument(status);
}

/// One job's polling. Kept apart from watch_job so that every way out ends the live line.
absl::StatusOr<v1::GetStatusResponse> poll_until_end(CoordinatorClient& client,
                                                     const std::string& job_id, Progress& progress,
                                                     const WatchOptions& options) {
  const SystemClock clock;
  Nanoseconds last_answer = clock.now();
  while (true) {
    auto status = client.get_status(kStatusTimeout);
    const Nanoseconds now = clock.now();
    if (status.ok()) {
      last_answer = now;
      if (status->job_id() != job_id) {
        return absl::UnknownError(absl::StrCat("the coordinator at ", client.address(),
                                               " no longer knows job ", job_id,
                                               "; its run directory tells how it ended"));
      }
      options.write(progress.update(*status, now));
      if (has_ended(*status)) return status;
    } else if (refuses(status.status())) {
      return status;
    } else if (now - last_answer > options.silence_limit) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator at ", client.address(), " has not answered for ",
                       options.silence_limit.count() / 1000, " s: ", status.status().message(),
                       "; the job may continue without it, and `poseidon status` shows it when it "
                       "answers again"));
    } else if (now - last_answer > kSilenceRemark) {
      options.write(progress.unheard(
          absl::StrCat("the coordinator at ", client.address(),
                       " does not answer; the job may continue without it; waiting for it for ",
                       options.silence_limit.count() / 1000, " s")));
    }
    if (absl::Status status_of_pause = options.pause(options.poll_interval);
        !status_of_pause.ok()) {
      return status_of_pause;
    }
  }
}

}  // namespace

absl::StatusOr<v1::GetStatusResponse> watch_job(CoordinatorClient& client,
                                                const std::string& job_id,
                                                ProgressOptions progress_options,
                                                const WatchOptions& options) {
  Progress progress(std::move(progress_options));
  auto result = poll_until_end(client, job_id, progress, options);
  options.write(progress.finish());
  return result;
}

ProgressOptions progress_options_of_stdout() {
  ProgressOptions options;
  options.terminal = ::isatty(STDOUT_FILENO) == 1;
  winsize size{};
  if (options.terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.columns = size.ws_col;
  }
  return options;
}

void write_stdout(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace poseidon
