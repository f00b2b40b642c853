#include "cli/local/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

constexpr std::streamoff kMaxTailBytes = 64 << 10;
constexpr Milliseconds kStopPoll{10};

/// The settings of one posix_spawn.
class SpawnSettings {
 public:
  SpawnSettings(const std::string& log, bool append) {
    posix_spawn_file_actions_init(&files_);
    posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files_, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND | (append ? 0 : O_TRUNC), 0644);
    posix_spawn_file_actions_adddup2(&files_, STDOUT_FILENO, STDERR_FILENO);

    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  const posix_spawn_file_actions_t* files() const { return &files_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

}  // namespace

std::string describe_wait_status(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    return absl::StrCat("signal ", number, " (", ::strsignal(number), ")");
  }
  return absl::StrCat("exit status ", WEXITSTATUS(wait_status));
}

std::string last_lines(const std::filesystem::path& path, std::size_t lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff wanted = std::min(size, kMaxTailBytes);
  file.seekg(size - wanted);
  std::string text(static_cast<std::size_t>(wanted), '\0');
  file.read(text.data(), wanted);
  text.resize(static_cast<std::size_t>(file.gcount()));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::size_t begin = text.size();
  for (std::size_t i = 0; i < lines && begin > 0; ++i) {
    const std::size_t line_end = text.rfind('\n', begin - 1);
    begin = line_end == std::string::npos ? 0 : line_end;
  }
  if (begin < text.size() && text[begin] == '\n') ++begin;
  return text.substr(begin);
}

namespace {

absl::StatusOr<pid_t> spawn(const ChildOptions& options, bool append_log) {
  const std::string program = options.program.string();
  std::vector<std::string> words = {program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  std::vector<std::string> variables = options.environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const auto has_name = [name](const std::string& given) { return given.starts_with(name); };
    if (std::ranges::none_of(options.environment, has_name)) variables.emplace_back(text);
  }
  std::vector<char*> envp;
  envp.reserve(variables.size() + 1);
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);

  const SpawnSettings settings(options.log.string(), append_log);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), settings.files(), settings.attributes(),
                                  argv.data(), envp.data());
  if (error != 0) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", options.name, " (", program,
                                                   ", log ", options.log.string(), ")"));
  }
  return pid;
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::start(ChildOptions options) {
  POSEIDON_ASSIGN_OR_RETURN(const pid_t pid, spawn(options, /*append_log=*/false));
  return ChildProcess(std::move(options), pid);
}

absl::Status ChildProcess::start_again(std::vector<std::string> arguments) {
  POSEIDON_CHECK(wait_status_.has_value(), "only what has ended is started again");
  options_.arguments = std::move(arguments);
  POSEIDON_ASSIGN_OR_RETURN(pid_, spawn(options_, /*append_log=*/true));
  wait_status_.reset();
  return absl::OkStatus();
}

ChildProcess::ChildProcess(ChildOptions options, pid_t pid)
    : options_(std::move(options)), pid_(pid) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : options_(std::move(other.options_)),
      pid_(std::exchange(other.pid_, -1)),
      wait_status_(other.wait_status_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || poll()) return;
  kill();
  // After SIGKILL the end is certain; only the kernel is waited for.
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

std::optional<int> ChildProcess::poll() {
  if (wait_status_) return wait_status_;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == pid_) wait_status_ = status;
  return wait_status_;
}

void ChildProcess::request_stop() {
  signal(SIGTERM);
  signal(SIGCONT);
}

void ChildProcess::kill() { signal(SIGKILL); }

void ChildProcess::signal(int number) {
  // The number of a reaped child may belong to another process by now.
  if (pid_ > 0 && !poll()) ::kill(pid_, number);
}

std::vector<std::string> stop_all(std::vector<ChildProcess>& children, Milliseconds patience) {
  std::for_each(children.rbegin(), children.rend(),
                [](ChildProcess& child) { child.request_stop(); });
  const auto all_ended = [&children] {
    return std::all_of(children.begin(), children.end(),
                       [](ChildProcess& child) { return child.poll().has_value(); });
  };
  const SystemClock clock;
  const Nanoseconds end = clock.now() + patience;
  while (!all_ended() && clock.now() < end) std::this_thread::sleep_for(kStopPoll);

  std::vector<std::string> killed;
  for (ChildProcess& child : children) {
    if (child.poll()) continue;
    killed.push_back(child.name());
    child.kill();
  }
  return killed;
}

}  // namespace poseidon
