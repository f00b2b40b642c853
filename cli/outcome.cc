#include "cli/outcome.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/progress.h"
#include "cli/watch.h"
#include "common/printable.h"
#include "common/status_macros.h"

namespace poseidon {
namespace {

/// Who ends the waiting with Ctrl-C may think that it has ended the job. While one of these lives,
/// SIGINT and SIGTERM end the process as ever, and these words come before. One at a time.
class WordsAtSignal {
 public:
  explicit WordsAtSignal(std::string text) {
    words = std::move(text);
    struct sigaction action {};
    action.sa_handler = [](int number) {
      // What a handler may call.
      static_cast<void>(!::write(STDERR_FILENO, words.data(), words.size()));
      ::raise(number);
    };
    action.sa_flags = SA_RESETHAND | SA_NODEFER;
    for (Saved& saved : saved_) {
      ::sigaction(saved.number, nullptr, &saved.action);
      // A shell's background job may ignore it.
      if (saved.action.sa_handler == SIG_DFL) ::sigaction(saved.number, &action, nullptr);
    }
  }
  ~WordsAtSignal() {
    for (const Saved& saved : saved_) ::sigaction(saved.number, &saved.action, nullptr);
  }
  WordsAtSignal(const WordsAtSignal&) = delete;
  WordsAtSignal& operator=(const WordsAtSignal&) = delete;

 private:
  struct Saved {
    int number;
    struct sigaction action {};
  };
  std::array<Saved, 2> saved_{{{SIGINT}, {SIGTERM}}};
  inline static std::string words;
};

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
  absl::StrAppend(&text, "model        ", status.run_directory(), "/model.safetensors\n",
                  "metrics      ", status.run_directory(), "/metrics.jsonl\n");
  return printable_lines(text);
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "poseidon: warning: %s\n", printable(warning).c_str());
  }
}

absl::Status report_outcome(const v1::GetStatusResponse& status) {
  if (status.state() == "done") {
    write_stdout(outcome_text(status));
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      "job ", status.job(), " failed after ", status.iteration(), " of ", status.iterations(),
      " iterations: ", status.message(), "; run directory ", status.run_directory()));
}

absl::Status follow_job(CoordinatorClient& client, const v1::SubmitResponse& accepted,
                        const FollowOptions& options) {
  write_stdout(absl::StrCat("job ", printable(accepted.job_id()), " accepted; run directory ",
                            printable(accepted.run_directory()), "\n"));
  if (!options.wait) {
    write_stdout(
        absl::StrCat("follow it with: poseidon status --coordinator ", client.address(), "\n"));
    return absl::OkStatus();
  }
  WatchOptions watch;
  watch.silence_limit = options.coordinator_away;
  watch.pause = [](Milliseconds time) {
    std::this_thread::sleep_for(time);
    return absl::OkStatus();
  };
  watch.write = write_stdout;
  const WordsAtSignal words(absl::StrCat(
      "\nthe job goes on; see it with: poseidon status --coordinator ", client.address(),
      ", end it with: poseidon stop --coordinator ", client.address(), "\n"));
  POSEIDON_ASSIGN_OR_RETURN(
      const v1::GetStatusResponse last,
      watch_job(client, accepted.job_id(), progress_options_of_stdout(), watch));
  return report_outcome(last);
}

}  // namespace poseidon
