#pragma once

// Shared code of the three daemons: logging, signals, addresses, common options. Nothing here is on
// the data path.
//
// Called by: the main() of each daemon, which then wires the parts. Calls: common/daemon/log.h,
// common/daemon/command_line.h. Errors are for people: they name the option and the remedy.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/daemon/log.h"
#include "common/security/security_options.h"

namespace CLI {
class App;
}

namespace poseidon {

class Security;

// ---- exit codes (README.md) ----

inline constexpr int kExitDone = 0;
inline constexpr int kExitRunFailed = 1;
inline constexpr int kExitWrongCall = 2;

/// INVALID_ARGUMENT and NOT_FOUND mean a wrong call, any other error a failed run.
int exit_code(const absl::Status& status);

/// The software's version, "0.1.0", for --version and status. Only kProtocolVersion decides whether
/// two nodes are compatible.
std::string software_version();

// ---- addresses ----

/// HOST is a name, an IPv4 address or an IPv6 address (kept without its brackets).
struct HostPort {
  std::string host;
  int port = 0;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

enum class PortZero { kRefused, kAllowed };  ///< port 0 asks the system for a free one

/// Parses "name:4711", "10.0.0.1:4711" or "[::1]:4711". INVALID_ARGUMENT names text and remedy.
absl::StatusOr<HostPort> parse_host_port(std::string_view text, PortZero port_zero);

/// The same for an option's value; the message also names the option ("--listen").
absl::StatusOr<HostPort> parse_option_address(std::string_view option, std::string_view text,
                                              PortZero port_zero);
/// Prefixes an error about an option's value with the option's name. OK stays OK.
absl::Status of_option(std::string_view option, const absl::Status& status);

/// With brackets around an IPv6 host.
std::string to_string(const HostPort& address);

/// "0.0.0.0", "::" and "": valid to listen on, but not to connect to.
bool is_wildcard_host(std::string_view host);

/// "localhost", 127.x.x.x and "::1": reached from this machine alone.
bool is_loopback_host(std::string_view host);

/// The address of a metrics or status page: ADDR:PORT, or :PORT or PORT for 127.0.0.1.
/// INVALID_ARGUMENT says what is wrong.
absl::StatusOr<HostPort> parse_page_address(const std::string& text);
/// The scheme of a page at `address` (HOST:PORT): "https" when its daemon `has_tls`, but "http" for
/// 127.0.0.1, ::1 and localhost (common/pages/http_server.h).
std::string page_scheme(std::string_view address, bool has_tls);

/// Our IP address towards `remote`, by which other machines of its network can reach us. Sends
/// nothing. "0.0.0.0" when unknown (no such name, no route).
std::string local_host_towards(const HostPort& remote);

// ---- start and stop ----

/// Upper limit of options that state a waiting time: a year.
inline constexpr std::int64_t kMaxWaitS = 31'536'000;

/// Options that every daemon has.
struct DaemonOptions {
  LogOptions log;
  SecurityOptions security;
  std::string address_file;  ///< "" or the file that gets the actual listening address
  /// The parent process: when it ends, we get SIGTERM. 0: none.
  std::int32_t parent_pid = 0;
};

/// Adds --config (common/daemon/command_line.h), --tls-dir, --join-token-file, --log-level,
/// --log-format,
/// --address-file,
/// --exit-with-parent and --version.
void add_daemon_options(CLI::App& app, DaemonOptions& options);

/// Threads that a daemon may come to have: those of gRPC, of the engine and its own.
std::size_t most_daemon_threads();

/// Opens /dev/null for each of descriptors 0 to 2 that is closed. Otherwise a file opened later
/// would receive the output to stdout or stderr. First thing in main().
void open_standard_streams();

/// The main() of a daemon once its options are declared: reads the command line into them, then
/// runs. Prints "<program>: <message>" to stderr when `run` fails, or when an exception is not
/// caught. The process's exit code.
int daemon_main(CLI::App& app, int argc, char** argv, const std::function<absl::Status()>& run);

/// Sets up logging to stderr, one line per event, with `name` in each; carries out
/// parent_pid; ignores SIGPIPE; blocks the signals of StopSignals. An error where the process may
/// not have as many files open, or start as many threads, as a daemon needs. Call once, first thing
/// after parsing and before any thread starts.
absl::Status start_daemon(std::string_view name, const DaemonOptions& options);

/// Logs a warning when `listen` (HOST:PORT) is reachable from other machines and there is neither
/// TLS nor a join token.
void warn_if_open(const std::string& listen, const Security& security);

/// Prints "listening on ADDRESS" to stdout (launchers and tests read it) and writes address_file.
absl::Status announce_address(const DaemonOptions& options, const std::string& address);

/// Turns SIGTERM, SIGINT and SIGHUP (unless that is ignored, as under nohup) into one call of
/// `on_stop` on a thread of its own; it must return at once (set a flag, wake a thread), because
/// the same thread waits for a second SIGTERM or SIGINT, which ends the process immediately with
/// exit code 128 + signal. Create it in main() after start_daemon, or before any other thread:
/// threads inherit the blocked signals. The destructor stops the thread and leaves the signals
/// blocked.
class StopSignals {
 public:
  explicit StopSignals(std::function<void(const std::string& signal_name)> on_stop);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  void watch();

  std::function<void(const std::string&)> on_stop_;
  Descriptor signal_fd_;
  Descriptor wake_fd_;  ///< eventfd: the destructor ends the thread with it
  std::thread thread_;
};

}  // namespace poseidon
