#include "client/declare.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <thread>

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

absl::Status connect(grpc::Channel& channel, const ClientOptions& options, Nanoseconds give_up,
                     const std::function<bool()>& is_cancelled) {
  const SystemClock clock;
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

std::uint32_t join_rank(const ClientOptions& options) {
  return static_cast<std::uint32_t>(options.rank + 1);
}

absl::StatusOr<std::string> declare(const ClientOptions& options, const std::string& job_json,
                                    const std::shared_ptr<Security>& security,
                                    const std::function<bool()>& is_cancelled) {
  grpc::ChannelArguments arguments;
  // A cluster's own addresses never go through a web proxy, whatever the environment says.
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  const auto channel = grpc::CreateCustomChannel(
      options.coordinator, security->channel_credentials(kCoordinatorMethods), arguments);
  v1::DeclareRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_rank(join_rank(options));
  v1::SubmitRequest& job = *request.mutable_submit();
  job.set_job_json(job_json);
  job.set_run_directory(options.run_dir);
  job.set_workers(static_cast<std::uint32_t>(options.workers));
  job.set_servers(static_cast<std::uint32_t>(options.servers));
  const auto stub = v1::Coordinator::NewStub(channel);
  const SystemClock clock;
  const Nanoseconds give_up = clock.now() + options.join_timeout;
  while (true) {
    POSEIDON_RETURN_IF_ERROR(connect(*channel, options, give_up, is_cancelled));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAnswerTimeout);
    security->sign(context);
    v1::DeclareResponse response;
    const grpc::Status status = stub->Declare(&context, request, &response);
    if (status.ok()) {
      if (response.is_first()) {
        spdlog::info("job {} is declared; its run directory is {}", response.job().job_id(),
                     response.job().run_directory());
      }
      for (const std::string& warning : response.job().warnings()) spdlog::warn("{}", warning);
      return response.job().job_id();
    }
    const absl::Status why = security->explain(to_absl(status));
    // Another worker declares the job at this moment, or the coordinator starts or stops.
    if (!absl::IsUnavailable(why) || clock.now() >= give_up) return why;
    std::this_thread::sleep_for(kConnectPatience);
  }
}

}  // namespace poseidon
