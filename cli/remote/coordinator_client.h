#pragma once

// The operator's calls to the coordinator, each with a deadline and an error that names a remedy.
//
// Called by: cli/commands, cli/doctor and cli/local. Calls: the coordinator
// (coordinator/service.h).

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/remote/trace_data.h"
#include "common/base/clock.h"
#include "common/security/security.h"
#include "poseidon/v1/control.pb.h"

namespace grpc {
class Status;
}

namespace poseidon {

/// The coordinator's address and our credentials; options of every command that talks to it.
struct CoordinatorAccess {
  std::string coordinator;              ///< HOST:PORT
  Milliseconds connect_timeout{10000};  ///< how long to wait for a coordinator that is starting
  SecurityOptions security;
};

/// Timeouts for answers: of status, which is polled, and of submit, for which the coordinator reads
/// models and plans.
inline constexpr Milliseconds kStatusTimeout{2000};
inline constexpr Milliseconds kSubmitTimeout{30000};
/// Timeout of all other calls, which the coordinator answers from memory.
inline constexpr Milliseconds kCallTimeout{5000};

/// INVALID_ARGUMENT unless a coordinator can take it for --run-dir: absolute, as a folder of its
/// machine, and UTF-8, as a text of a message.
absl::Status check_run_dir(const std::string& path);

/// The text as a shell takes it for one word, for commands that are shown to people.
std::string shell_word(const std::string& text);

/// One thread only.
class CoordinatorClient {
 public:
  /// `address` is HOST:PORT. Connects with the first call.
  explicit CoordinatorClient(std::string address,
                             std::shared_ptr<Security> security = Security::none());
  /// The same for an operator's command. INVALID_ARGUMENT for an invalid address, and for invalid
  /// TLS files and tokens.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> make(const CoordinatorAccess& access);
  ~CoordinatorClient();

  const std::string& address() const { return address_; }
  /// The options with which a command reaches the same coordinator: "--coordinator 10.0.0.1:4700
  /// --tls-dir /etc/poseidon/tls". For people.
  const std::string& options() const { return options_; }
  const std::shared_ptr<Security>& security() const { return security_; }

  /// UNAVAILABLE (no process listens there, or the connection was cut) and DEADLINE_EXCEEDED (a
  /// process listens but does not answer) may be tried again; other codes are the coordinator's
  /// answer. `timeout` covers both connecting and the answer.
  absl::StatusOr<v1::GetStatusResponse> get_status(Milliseconds timeout);

  /// Calls get_status until it answers, for at most `patience`: a coordinator may still be
  /// starting. After that UNAVAILABLE names the address, the time tried and what to check.
  absl::StatusOr<v1::GetStatusResponse> wait_for_coordinator(Milliseconds patience);

  /// Executed at most once. Any error of the coordinator means that no job was started. UNKNOWN
  /// (cut in the middle) means that it may have started; the message says how to find out.
  absl::StatusOr<v1::SubmitResponse> submit(const v1::SubmitRequest& request, Milliseconds timeout);

  // ---- checkpoints; errors are the coordinator's answer, UNAVAILABLE names the address. Each
  // waits for a connection for at most `timeout`, and for its answer for the rest of it ----
  absl::StatusOr<v1::ListCheckpointsResponse> list_checkpoints(Milliseconds timeout);
  absl::StatusOr<v1::RequestCheckpointResponse> request_checkpoint(Milliseconds timeout);
  absl::StatusOr<v1::LocateCheckpointResponse> locate_checkpoint(
      const v1::LocateCheckpointRequest& request, Milliseconds timeout);
  /// All of them or none.
  absl::StatusOr<v1::RemoveCheckpointsResponse> remove_checkpoints(
      const v1::RemoveCheckpointsRequest& request, Milliseconds timeout);
  /// Ends the job: may be repeated.
  absl::StatusOr<v1::EndJobResponse> end_job(const v1::EndJobRequest& request,
                                             Milliseconds timeout);
  /// Takes a node out of service, or back into it: may be repeated.
  absl::StatusOr<v1::DrainNodeResponse> drain_node(const v1::DrainNodeRequest& request,
                                                   Milliseconds timeout);
  /// As submit.
  absl::StatusOr<v1::SubmitResponse> restore_checkpoint(const v1::RestoreCheckpointRequest& request,
                                                        Milliseconds timeout);

  /// Traces every node for the next `iterations` iterations; waits for them for at most `patience`.
  /// A trace that was cut off is an error; UNAVAILABLE when the coordinator falls silent.
  absl::StatusOr<TraceData> trace(std::uint32_t iterations, Milliseconds patience);

 private:
  struct Connection;
  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> ask(Method method, Request request, Milliseconds timeout);
  template <typename Method, typename Request>
  absl::StatusOr<v1::SubmitResponse> start_job(Method method, const Request& request,
                                               Milliseconds timeout);
  absl::Status no_answer(const grpc::Status& status) const;

  const std::string address_;
  std::string options_;
  const std::shared_ptr<Security> security_;
  std::unique_ptr<Connection> connection_;
  bool has_answered_ = false;
};

}  // namespace poseidon
