#include "bench/transport/cluster.h"

#include <stdlib.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "bench/transport/control.h"
#include "cli/local/child_process.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/security/certificates.h"

namespace poseidon::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Between the end of the control line and SIGKILL.
constexpr Milliseconds kEndPatience{30000};
constexpr Milliseconds kEndPoll{5};
constexpr Milliseconds kLookEvery{200};  // at the other processes, while one does not answer
constexpr std::size_t kLastLines = 10;

struct Process {
  ChildProcess child;
  ControlLine line;
};

/// How a process ended, and its last words.
std::string describe_end(Process& process) {
  const std::optional<int> status = process.child.poll();
  return absl::StrCat(process.child.name(), " (",
                      status ? describe_wait_status(*status) : "still running",
                      "): ", last_lines(process.child.log(), kLastLines));
}

json command(const char* what) {
  json message = json::object();
  message["do"] = what;
  return message;
}

/// Certificates for both roles, in folders of their names.
absl::Status make_certificates(const fs::path& folder) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const Validity validity{.from_unix_s = (now - std::chrono::hours(1)).count(),
                          .until_unix_s = (now + std::chrono::hours(1000)).count()};
  POSEIDON_ASSIGN_OR_RETURN(const KeyPair authority, make_authority("benchmark", validity));
  for (const PeerRole role : {PeerRole::kServer, PeerRole::kWorker}) {
    const std::string name(peer_role_name(role));
    POSEIDON_ASSIGN_OR_RETURN(const KeyPair node,
                              issue_certificate(authority, role, name, validity));
    fs::create_directories(folder / name);
    for (const auto& [file, text] :
         {std::pair("ca.crt", &authority.certificate_pem),
          std::pair("tls.crt", &node.certificate_pem), std::pair("tls.key", &node.key_pem)}) {
      const fs::path path = folder / name / file;
      std::ofstream(path) << *text;
      fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    }
  }
  return absl::OkStatus();
}

class Cluster {
 public:
  Cluster(const Variant& variant, const RunOptions& options, fs::path logs)
      : variant_(variant), options_(options), logs_(std::move(logs)) {}

  absl::Status start() {
    const Shape& shape = options_.shape;
    for (std::uint32_t i = 0; i < shape.servers; ++i) {
      POSEIDON_RETURN_IF_ERROR(start_one("server", i, servers_));
    }
    for (std::uint32_t i = 0; i < shape.workers; ++i) {
      POSEIDON_RETURN_IF_ERROR(start_one("worker", i, workers_));
    }
    json connect = command("connect");
    for (Process& server : servers_) {
      POSEIDON_ASSIGN_OR_RETURN(const json answer, receive(server));
      connect["servers"].push_back(answer.at("address"));
    }
    for (Process& worker : workers_) POSEIDON_RETURN_IF_ERROR(receive(worker).status());
    json serve = connect;
    serve["do"] = "serve";
    POSEIDON_RETURN_IF_ERROR(ask(servers_, serve).status());
    return ask(workers_, connect).status();
  }

  absl::Status run(Iteration first, Iteration iterations) {
    json message = command("run");
    message["first"] = first;
    message["iterations"] = iterations;
    return ask(workers_, message).status();
  }

  absl::Status check(Iteration iteration) {
    json message = command("check");
    message["iteration"] = iteration;
    return ask(workers_, message).status();
  }

  absl::StatusOr<double> worker_cpu_s() { return cpu_s(workers_); }
  absl::StatusOr<double> server_cpu_s() { return cpu_s(servers_); }

  /// Workers first: servers end their threads when the streams are gone.
  absl::Status end() {
    POSEIDON_RETURN_IF_ERROR(end(workers_));
    return end(servers_);
  }

 private:
  absl::Status start_one(const std::string& role, std::uint32_t index,
                         std::vector<Process>& processes) {
    POSEIDON_ASSIGN_OR_RETURN(auto lines, ControlLine::make_pair());
    const std::string name = absl::StrCat(to_absl(variant_.name), "'s ", role, " ", index);
    POSEIDON_ASSIGN_OR_RETURN(ChildProcess child,
                              ChildProcess::start({.name = name,
                                                   .program = "/proc/self/exe",
                                                   .arguments = {"--role", role, "--control",
                                                                 absl::StrCat(lines.second.get())},
                                                   .log = logs_ / absl::StrCat(role, "-", index)}));
    processes.push_back({.child = std::move(child), .line = std::move(lines.first)});
    const Shape& shape = options_.shape;
    const json task = {{"variant", std::string(variant_.name)},
                       {"index", index},
                       {"workers", shape.workers},
                       {"servers", shape.servers},
                       {"mib", shape.mib},
                       {"chunk_bytes", shape.chunk_bytes},
                       {"wire_dtype", std::string(wire_dtype_name(shape.wire_type))},
                       {"tls_dir", variant_.tls ? (logs_ / "tls" / role).string() : ""}};
    return send(processes.back(), task);
  }

  absl::Status send(Process& process, const json& message) {
    return process.line.send(message).ok() ? absl::OkStatus() : name_the_dead(process);
  }

  /// One that waits for another that has died would answer only at its own deadline: looks at all.
  absl::StatusOr<json> receive(Process& process) {
    const SystemClock clock;
    const Nanoseconds end = clock.now() + options_.step_timeout;
    while (true) {
      absl::StatusOr<json> answer = process.line.receive(kLookEvery);
      if (answer.ok()) return answer;
      if (!absl::IsDeadlineExceeded(answer.status())) return name_the_dead(process);
      for (auto* group : {&servers_, &workers_}) {
        for (Process& other : *group) {
          if (other.child.poll()) return name_the_dead(process);
        }
      }
      if (clock.now() >= end) {
        return absl::DeadlineExceededError(absl::StrCat(process.child.name(), " did not answer in ",
                                                        options_.step_timeout.count(), " ms"));
      }
    }
  }

  /// Writes to all, then reads from all.
  absl::StatusOr<std::vector<json>> ask(std::vector<Process>& processes, const json& message) {
    for (Process& process : processes) POSEIDON_RETURN_IF_ERROR(send(process, message));
    std::vector<json> answers;
    for (Process& process : processes) {
      POSEIDON_ASSIGN_OR_RETURN(answers.emplace_back(), receive(process));
    }
    return answers;
  }

  /// A process has ended, perhaps `suspect`. One end drags others along, so all that ended within a
  /// moment are told.
  absl::Status name_the_dead(Process& suspect) {
    std::this_thread::sleep_for(kLookEvery);
    std::string ends;
    for (auto* group : {&servers_, &workers_}) {
      for (Process& process : *group) {
        if (process.child.poll()) absl::StrAppend(&ends, "\n  ", describe_end(process));
      }
    }
    if (ends.empty()) absl::StrAppend(&ends, "\n  ", describe_end(suspect));
    return absl::AbortedError(absl::StrCat("a process ended unexpectedly:", ends));
  }

  absl::StatusOr<double> cpu_s(std::vector<Process>& processes) {
    POSEIDON_ASSIGN_OR_RETURN(const std::vector<json> answers, ask(processes, command("usage")));
    double sum = 0.0;
    for (const json& answer : answers) sum += answer.at("cpu_s").get<double>();
    return sum;
  }

  static absl::Status end(std::vector<Process>& processes) {
    for (Process& process : processes) process.line.close();
    const SystemClock clock;
    const Nanoseconds deadline = clock.now() + kEndPatience;
    for (Process& process : processes) {
      while (!process.child.poll() && clock.now() < deadline) {
        std::this_thread::sleep_for(kEndPoll);
      }
      // A sanitizer's findings at exit count, too.
      if (process.child.poll() == 0) continue;
      return absl::AbortedError(absl::StrCat("did not end well: ", describe_end(process)));
    }
    return absl::OkStatus();
  }

  const Variant& variant_;
  const RunOptions& options_;
  const fs::path logs_;
  std::vector<Process> servers_, workers_;  ///< killed with us if they still run
};

}  // namespace

absl::StatusOr<Sample> run_once(const Variant& variant, const RunOptions& options) {
  std::string folder = (fs::temp_directory_path() / "poseidon-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", folder));
  }
  const absl::Cleanup remove = [&folder] {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  };
  if (variant.tls) POSEIDON_RETURN_IF_ERROR(make_certificates(fs::path(folder) / "tls"));
  Cluster cluster(variant, options, folder);
  POSEIDON_RETURN_IF_ERROR(cluster.start());
  POSEIDON_RETURN_IF_ERROR(cluster.run(0, 1));
  POSEIDON_RETURN_IF_ERROR(cluster.check(0));
  POSEIDON_ASSIGN_OR_RETURN(const double workers_before, cluster.worker_cpu_s());
  POSEIDON_ASSIGN_OR_RETURN(const double servers_before, cluster.server_cpu_s());
  const SystemClock clock;
  const Nanoseconds begin = clock.now();
  POSEIDON_RETURN_IF_ERROR(cluster.run(1, options.iterations));
  const Nanoseconds end = clock.now();
  POSEIDON_ASSIGN_OR_RETURN(const double workers_after, cluster.worker_cpu_s());
  POSEIDON_ASSIGN_OR_RETURN(const double servers_after, cluster.server_cpu_s());
  POSEIDON_RETURN_IF_ERROR(cluster.check(options.iterations));
  POSEIDON_RETURN_IF_ERROR(cluster.end());
  return Sample{.seconds = std::chrono::duration<double>(end - begin).count(),
                .worker_cpu_s = workers_after - workers_before,
                .server_cpu_s = servers_after - servers_before};
}

}  // namespace poseidon::bench
