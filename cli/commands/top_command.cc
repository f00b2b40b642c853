#include "cli/commands/top_command.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/top_format.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/pages/status_json.h"
#include "common/threads/mutex.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

/// Silence of the coordinator before giving up, when there is no terminal to end the wait.
constexpr Milliseconds kTopSilenceLimit{15000};
/// The size of a refresh when there is no terminal.
constexpr TopSize kPlainSize{.columns = 120, .rows = 100};

/// Takes over the screen and the keys, and restores both: also while waiting for the coordinator,
/// because a second signal ends the process immediately. The thread for signals may restore them.
class Screen {
 public:
  Screen() = default;
  ~Screen() { give_back(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// When there is a terminal that has not been restored yet.
  void take() {
    const MutexLock lock(mutex_);
    if (is_given_back_ || ::isatty(STDOUT_FILENO) == 0) return;
    const char* const terminal = std::getenv("TERM");
    if (terminal != nullptr && std::string_view(terminal) == "dumb") return;  // as into a pipe
    is_terminal_ = true;
    write_stdout("\x1b[?1049h\x1b[?25l");  // the other screen, no cursor
    termios keys{};
    if (::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &keys) == 0) {
      before_ = keys;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // each key at once, unseen
      ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
  }
  /// Nothing is printed after it.
  void give_back() {
    const MutexLock lock(mutex_);
    if (std::exchange(is_given_back_, true)) return;
    if (before_) ::tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
    if (is_terminal_) write_stdout("\x1b[?25h\x1b[?1049l");
  }

  // Of the thread that took it.
  bool is_terminal() const { return is_terminal_; }
  bool has_keys() const { return before_.has_value(); }
  TopSize size() const {
    winsize window{};
    if (!is_terminal_ || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) {
      return kPlainSize;
    }
    return {.columns = window.ws_col, .rows = window.ws_row};
  }
  void show(const std::vector<std::string>& lines) {
    const MutexLock lock(mutex_);
    if (is_given_back_) return;
    std::string text = is_terminal_ ? "\x1b[H" : "";
    for (std::size_t i = 0; i < lines.size(); ++i) {
      absl::StrAppend(&text, lines[i], is_terminal_ ? "\x1b[K" : "");
      // No line end in the last row: the screen would scroll.
      if (!is_terminal_ || i + 1 < lines.size()) absl::StrAppend(&text, "\n");
    }
    absl::StrAppend(&text, is_terminal_ ? "\x1b[J" : "\n");
    write_stdout(text);
  }

 private:
  Mutex mutex_;
  bool is_given_back_ ABSL_GUARDED_BY(mutex_) = false;
  // Changed under mutex_ by the thread that took over the screen, which reads them without it.
  bool is_terminal_ = false;
  std::optional<termios> before_;  ///< the keys'
};

/// Waits for the next refresh; returns true to end instead: q, or a signal.
bool enough(const Screen& screen, int stop_fd, Milliseconds pause) {
  const SystemClock clock;
  const Nanoseconds until = clock.now() + pause;
  while (true) {
    const auto left = std::chrono::ceil<Milliseconds>(until - clock.now());
    pollfd fds[2] = {{stop_fd, POLLIN, 0}, {screen.has_keys() ? STDIN_FILENO : -1, POLLIN, 0}};
    if (::poll(fds, 2, static_cast<int>(std::max<Milliseconds::rep>(left.count(), 0))) == 0) {
      return false;
    }
    if ((fds[0].revents & POLLIN) != 0) return true;
    char key = 0;
    if (fds[1].revents != 0 && (::read(STDIN_FILENO, &key, 1) != 1 || key == 'q')) return true;
    if (key != 0) return false;  // any other key: refresh now
  }
}

std::vector<std::string> told_silence(std::vector<std::string> lines, const std::string& address,
                                      Nanoseconds silence, const TopSize& size) {
  std::string line = absl::StrCat("the coordinator at ", address, " has not answered for ",
                                  std::chrono::duration_cast<std::chrono::seconds>(silence).count(),
                                  " s; the status below is older:");
  if (size.columns > 0) line.resize(utf8_prefix(line, size.columns).size());
  lines.insert(lines.begin(), std::move(line));
  return lines;
}

absl::Status look_again_and_again(const TopOptions& options, CoordinatorClient& client,
                                  v1::GetStatusResponse status, int stop_fd, Screen& screen) {
  if (!options.json) screen.take();
  const SystemClock clock;
  Nanoseconds answered = clock.now();
  const Milliseconds interval(static_cast<Milliseconds::rep>(options.interval_s * 1000));
  for (std::int64_t frame = 1;; ++frame) {
    const Nanoseconds silence = clock.now() - answered;
    const bool silent = silence > kStatusTimeout;
    if (options.json) {
      if (!silent) write_stdout(status_to_json(status).dump() + "\n");
    } else {
      TopSize size = screen.size();
      if (silent && size.rows > 0) --size.rows;
      std::vector<std::string> lines = top_lines(status, size);
      screen.show(silent ? told_silence(std::move(lines), client.address(), silence, size) : lines);
    }
    if (options.frames > 0 && frame >= options.frames) return absl::OkStatus();
    if (enough(screen, stop_fd, interval)) return absl::OkStatus();
    auto next = client.get_status(kStatusTimeout);
    if (next.ok()) {
      status = *std::move(next);
      answered = clock.now();
    } else if (!screen.is_terminal() && clock.now() - answered > kTopSilenceLimit) {
      return absl::UnavailableError(absl::StrCat(
          "the coordinator at ", client.address(), " has not answered for ",
          kTopSilenceLimit.count() / 1000, " s: ", std::string(next.status().message())));
    }
  }
}

}  // namespace

absl::Status run_top(const TopOptions& options) {
  const Descriptor stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  POSEIDON_CHECK(stop.is_open(), "a file descriptor is free at the start");
  Screen screen;
  const StopSignals signals([&](const std::string& /*name*/) {
    screen.give_back();
    const std::uint64_t one = 1;
    POSEIDON_CHECK(::write(stop.get(), &one, sizeof(one)) == sizeof(one),
                   "an eventfd takes a count");
  });
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  POSEIDON_ASSIGN_OR_RETURN(v1::GetStatusResponse status,
                            client->wait_for_coordinator(options.connect_timeout));
  return look_again_and_again(options, *client, std::move(status), stop.get(), screen);
}

}  // namespace poseidon
