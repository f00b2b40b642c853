#include "client/declare.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/grpc/grpc_status.h"
#include "poseidon/v1/control.grpc.pb.h"
#include "spdlog/spdlog.h"

namespace poseidon {

namespace {

/// How long one look for a coordinator lasts before cancellation is looked at again ...
constexpr Milliseconds kConnectPatience{200};
/// ... and how long one that is there may take to answer.
constexpr Milliseconds kAnswerTimeout{30000};

absl::Status connect(grpc::Channel& channel, const ClientOptions& options,
                     const std::function<bool()>& is_cancelled) {
  const SystemClock clock;
  const Nanoseconds give_up = clock.now() + options.join_timeout;
  while (!channel.WaitForConnected(std::chrono::system_clock::now() + kConnectPatience)) {
    if (is_cancelled()) return absl::CancelledError("the program has left before it joined");
    if (clock.now() < give_up) continue;
    return absl::UnavailableError(
        absl::StrCat("no coordinator answers at ", options.coordinator, " (tried for ",
                     options.join_timeout.count() / 1000,
                     " s); is poseidon-coordinator running there, and is \"coordinator\" its "
                     "--listen address?"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status declare(const ClientOptions& options, const std::string& job_json,
                     const std::shared_ptr<Security>& security,
                     const std::function<bool()>& is_cancelled) {
  if (options.rank > 0) return absl::OkStatus();
  grpc::ChannelArguments arguments;
  // A cluster's own addresses never go through a web proxy, whatever the environment says.
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  const auto channel = grpc::CreateCustomChannel(
      options.coordinator, security->channel_credentials(kCoordinatorMethods), arguments);
  POSEIDON_RETURN_IF_ERROR(connect(*channel, options, is_cancelled));
  v1::SubmitRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_job_json(job_json);
  request.set_run_directory(options.run_dir);
  request.set_workers(static_cast<std::uint32_t>(options.workers));
  request.set_servers(static_cast<std::uint32_t>(options.servers));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnswerTimeout);
  security->sign(context);
  v1::SubmitResponse response;
  const grpc::Status status =
      v1::Coordinator::NewStub(channel)->Submit(&context, request, &response);
  if (status.ok()) {
    spdlog::info("job {} is declared; its run directory is {}", response.job_id(),
                 response.run_directory());
    for (const std::string& warning : response.warnings()) spdlog::warn("{}", warning);
    return absl::OkStatus();
  }
  // Another worker of the job was first.
  if (status.error_code() == grpc::StatusCode::FAILED_PRECONDITION && options.rank < 0) {
    spdlog::info("another worker has declared a job: {}", status.error_message());
    return absl::OkStatus();
  }
  return security->explain(to_absl(status));
}

}  // namespace poseidon
