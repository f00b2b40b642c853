#include "common/daemon/daemon.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/base/process_load.h"
#include "common/base/text.h"
#include "common/daemon/command_line.h"
#include "common/daemon/parent.h"
#include "common/files/file_io.h"
#include "common/security/security.h"
#include "common/threads/thread_limit.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

constexpr std::size_t kMaxHostLength = 253;  // of a DNS name

absl::Status wrong_address(std::string_view text, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("'", std::string(text), "' is no address: ", why,
                                                 "; write HOST:PORT, for example 10.0.0.1:4711, "
                                                 "node7:4711 or [::1]:4711"));
}

bool plain_host_character(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
}

bool ipv6_character(char c) {
  return absl::ascii_isxdigit(static_cast<unsigned char>(c)) || c == ':' || c == '.' || c == '%' ||
         absl::ascii_isalnum(static_cast<unsigned char>(c));
}

/// Of a daemon of a small cluster: libraries, logs, the store, and some connections. A process with
/// fewer would come to its limit in the middle of a job.
constexpr rlim_t kFewestFiles = 128;

/// Connections need them; the system's default is low for the sake of old programs.
absl::Status open_many_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // a limit that cannot be raised stays
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kFewestFiles) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "this process may have ", limit.rlim_cur, " files open, and needs at least ", kFewestFiles,
      ": raise the limit (ulimit -n; LimitNOFILE= of a unit; docker --ulimit nofile=)"));
}

/// In this thread and those that it will start.
sigset_t block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // The terminal was closed; a process started with nohup must outlive it.
  struct sigaction on_hangup {};
  POSEIDON_CHECK(::sigaction(SIGHUP, nullptr, &on_hangup) == 0, "SIGHUP is a signal");
  if (on_hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  POSEIDON_CHECK(::pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0, "signals can be blocked");
  return signals;
}

}  // namespace

int exit_code(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kExitWrongCall
                                                                     : kExitRunFailed;
}

absl::StatusOr<HostPort> parse_host_port(std::string_view text, PortZero port_zero) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong_address(text, "the port is missing");
  std::string_view host = text.substr(0, colon);
  const std::string_view port_text = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == std::string_view::npos ||
        !std::all_of(host.begin(), host.end(), ipv6_character)) {
      return wrong_address(text, "what stands in brackets is no IPv6 address");
    }
  } else {
    if (host.empty()) return wrong_address(text, "the host is missing");
    if (!std::all_of(host.begin(), host.end(), plain_host_character)) {
      return wrong_address(text, "the host has an invalid character (IPv6 needs brackets)");
    }
  }
  if (host.size() > kMaxHostLength) return wrong_address(text, "the host is too long");
  int port = 0;
  if (port_text.empty() || port_text.size() > 5 ||
      !std::all_of(port_text.begin(), port_text.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(std::string(port_text), &port) || port > 65535) {
    return wrong_address(text, "the port must be a number up to 65535");
  }
  if (port == 0 && port_zero == PortZero::kRefused) {
    return wrong_address(text, "port 0 names no port to connect to");
  }
  return HostPort{.host = std::string(host), .port = port};
}

absl::StatusOr<HostPort> parse_option_address(std::string_view option, std::string_view text,
                                              PortZero port_zero) {
  absl::StatusOr<HostPort> address = parse_host_port(text, port_zero);
  if (!address.ok()) return of_option(option, address.status());
  return address;
}

absl::Status of_option(std::string_view option, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(std::string(option), ": ", status.message()));
}

std::string to_string(const HostPort& address) {
  if (address.host.find(':') != std::string::npos) {
    return absl::StrCat("[", address.host, "]:", address.port);
  }
  return absl::StrCat(address.host, ":", address.port);
}

bool is_wildcard_host(std::string_view host) {
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "*";
}

bool is_loopback_host(std::string_view host) {
  const bool is_ipv4 = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return host == "localhost" || host == "::1" || host.starts_with("::ffff:127.") ||
         (is_ipv4 && host.starts_with("127."));
}

namespace {

std::string numeric_host(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  const bool is_known =
      ::getnameinfo(address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return is_known ? host.data() : "";
}

/// What a name stands for on this machine, where that is nothing but loopback addresses: the first
/// of them. Otherwise "".
std::string loopback_of(const HostPort& address) {
  if (is_wildcard_host(address.host)) return "";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.host.c_str(), nullptr, &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (!is_loopback_host(numeric_host(each->ai_addr, each->ai_addrlen))) return "";
  }
  return numeric_host(found->ai_addr, found->ai_addrlen);
}

}  // namespace

absl::StatusOr<HostPort> parse_page_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return parse_page_address(absl::StrCat(":", text));
  return parse_host_port(colon == 0 ? absl::StrCat("127.0.0.1", text) : text, PortZero::kAllowed);
}

std::string page_scheme(std::string_view address, bool has_tls) {
  const auto place = parse_host_port(address, PortZero::kAllowed);
  const bool is_plain = place.ok() && (place->host == "127.0.0.1" || place->host == "::1" ||
                                       place->host == "localhost");
  return has_tls && !is_plain ? "https" : "http";
}

std::string local_host_towards(const HostPort& remote) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // to connect it only picks a way there
  for (const int family : {AF_INET, AF_INET6}) {
    hints.ai_family = family;
    addrinfo* found = nullptr;
    if (::getaddrinfo(remote.host.c_str(), std::to_string(remote.port).c_str(), &hints, &found) !=
        0) {
      continue;
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    const Descriptor socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage ours{};
    socklen_t size = sizeof(ours);
    std::array<char, NI_MAXHOST> host{};
    if (socket.get() >= 0 && ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&ours), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&ours), size, host.data(), host.size(), nullptr,
                      0, NI_NUMERICHOST) == 0) {
      return host.data();
    }
  }
  return "0.0.0.0";
}

void add_daemon_options(CLI::App& app, DaemonOptions& options) {
  app.add_option("--log-level", options.log.level,
                 "trace, debug, info, warning, error or off (stderr, one line per event)")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.add_option("--log-format", options.log.format, "text, or json: one object per line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  add_security_options(app, options.security);
  app.add_option("--address-file", options.address_file,
                 "write the address really listened on to this file, once it is");
  app.set_version_flag("--version", "poseidon " + software_version());
  app.add_option("--exit-with-parent", options.parent_pid,
                 "process number of the launcher that started this one: stop when it ends")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  add_config_option(app);
}

std::string software_version() { return POSEIDON_VERSION; }

void open_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
}

std::size_t most_daemon_threads() {
  constexpr std::size_t kOwn = 24, kPerCore = 3;
  return kOwn + kPerCore * static_cast<std::size_t>(usable_cores());
}

int daemon_main(CLI::App& app, int argc, char** argv, const std::function<absl::Status()>& run) {
  open_standard_streams();
  static const std::string program = app.get_name();
  end_at_uncaught_exceptions(program.c_str());
  absl::Status status = check_words(app, {argv + 1, argv + argc});
  if (status.ok()) {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app.exit(error) == 0 ? kExitDone : kExitWrongCall;
      app.exit(CLI::Error(error.get_name(), error.what() + config_note(app, error.what())));
      return kExitWrongCall;
    }
    status = run();
  }
  std::string why(status.message());
  if (absl::IsInvalidArgument(status)) why += config_note(app, why);
  if (!status.ok() && !log_last_words(why)) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), printable_lines(why).c_str());
  }
  return exit_code(status);
}

absl::Status start_daemon(std::string_view name, const DaemonOptions& options) {
  POSEIDON_RETURN_IF_ERROR(start_log(name, options.log));
  take_grpc_log();
  POSEIDON_RETURN_IF_ERROR(open_many_files());
  POSEIDON_RETURN_IF_ERROR(check_threads(most_daemon_threads(), str_cat("poseidon-", name)));
  // Every thread inherits this. A signal that comes before StopSignals exists waits for it.
  block_stop_signals();
  // A reader of our stdout or stderr that goes away must not take us with it.
  ::signal(SIGPIPE, SIG_IGN);
  // A file that may not grow (ulimit -f) is an error like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  return options.parent_pid == 0 ? absl::OkStatus() : follow_parent(options.parent_pid);
}

void warn_if_open(const std::string& listen, const Security& security) {
  const auto address = parse_host_port(listen, PortZero::kAllowed);
  if (!address.ok() || is_loopback_host(address->host)) return;
  if (const std::string loopback = loopback_of(*address); !loopback.empty()) {
    spdlog::warn(
        "only this machine reaches {}: here {} is {} (see /etc/hosts); for others give --listen an "
        "IP address of this machine, or 0.0.0.0:{}",
        listen, address->host, loopback, address->port);
    return;
  }
  if (security.has_tls() || security.has_token()) return;
  spdlog::warn(
      "ANYBODY WHO REACHES {} MAY COMMAND THIS PROCESS: it listens beyond this machine with "
      "neither "
      "TLS (--tls-dir) nor a join token (--join-token-file); see docs/security.md",
      listen);
}

absl::Status announce_address(const DaemonOptions& options, const std::string& address) {
  std::printf("listening on %s\n", address.c_str());
  std::fflush(stdout);
  if (options.address_file.empty()) return absl::OkStatus();
  return of_option("--address-file", write_file_atomically(options.address_file, address + "\n"));
}

StopSignals::StopSignals(std::function<void(const std::string&)> on_stop)
    : on_stop_(std::move(on_stop)) {
  const sigset_t signals = block_stop_signals();
  signal_fd_ = Descriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_fd_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  POSEIDON_CHECK(signal_fd_.is_open() && wake_fd_.is_open(),
                 "two file descriptors are free at the start");
  thread_ = std::thread([this] { watch(); });
}

StopSignals::~StopSignals() {
  const std::uint64_t one = 1;
  POSEIDON_CHECK(::write(wake_fd_.get(), &one, sizeof(one)) == sizeof(one),
                 "an eventfd takes a count");
  thread_.join();
}

void StopSignals::watch() {
  bool stopping = false, was_told = false;
  pollfd fds[2] = {{signal_fd_.get(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}};
  while (true) {
    // Without a deadline on purpose: this thread lives as long as the process waits for signals.
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if ((fds[1].revents & POLLIN) != 0) return;
    signalfd_siginfo info{};
    if (::read(signal_fd_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    const auto number = static_cast<int>(info.ssi_signo);
    // Kernel, shell and session manager may each send it, and SIGTERM with it.
    const bool is_hangup = number == SIGHUP;
    if (was_told && !is_hangup) ::_exit(128 + number);
    was_told = was_told || !is_hangup;
    if (std::exchange(stopping, true)) continue;
    on_stop_(absl::StrCat("SIG", ::sigabbrev_np(number)));
  }
}

}  // namespace poseidon
