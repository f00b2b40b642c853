#include "cli/remote/coordinator_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/grpc/grpc_status.h"
#include "poseidon/v1/control.grpc.pb.h"

namespace poseidon {
namespace {

constexpr Milliseconds kPause{50};

/// A coordinator that collects ends by itself before (TraceRun::kCollectTimeout).
constexpr Milliseconds kTraceCollectTimeout{90000};
constexpr int kMaxAnswerBytes = 64 << 20;
/// A coordinator that is frozen or cut off is noticed after the sum of both, even by calls that may
/// take longer.
constexpr int kKeepaliveMs = 5000, kKeepaliveTimeoutMs = 10000;

/// Ready for a call, with a deadline and our credentials.
struct CallContext : grpc::ClientContext {
  CallContext(Milliseconds timeout, const Security& security) {
    set_deadline(std::chrono::system_clock::now() + timeout);
    security.sign(*this);
  }
};

/// The error of a call, in words for the user who typed the address.
absl::Status answer_of(const grpc::Status& status, const std::string& address) {
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(absl::StrCat(
        "what listens at ", address, " is no poseidon-coordinator, or one of another version (",
        status.error_message(), "); --coordinator is its --listen address"));
  }
  return to_absl(status);
}

}  // namespace

std::string shell_word(const std::string& text) {
  const bool is_plain = std::ranges::all_of(text, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("/._-+:@%,=~").find(c) != std::string_view::npos;
  });
  if (is_plain && !text.starts_with('~')) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

absl::Status check_run_dir(const std::string& path) {
  if (!std::filesystem::path(path).is_absolute()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--run-dir ", path,
        " must be absolute: it is a folder on the coordinator's machine, which cannot know yours"));
  }
  if (to_utf8(path) == path) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--run-dir ", to_utf8(path),
                   " is not UTF-8, so that no message can hold it; choose another folder"));
}

struct CoordinatorClient::Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Coordinator::Stub> stub;

  Connection(const std::string& address, const Security& security) {
    grpc::ChannelArguments arguments;
    // A cluster's own addresses never go through a web proxy, whatever the environment says.
    arguments.SetInt("grpc.enable_http_proxy", 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    // In spite of its name this is how long one attempt to connect may take.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
    channel = grpc::CreateCustomChannel(address, security.channel_credentials(kCoordinatorMethods),
                                        arguments);
    stub = v1::Coordinator::NewStub(channel);
  }

  /// Waits for a connection; returns the rest of `timeout`. A call fails at once on a channel whose
  /// last attempt to connect failed, and the next attempt makes no progress while no thread of this
  /// process waits for it. Without this wait, a coordinator that refused once would never be
  /// reached.
  Milliseconds wait(Milliseconds timeout) {
    const SystemClock clock;
    const Nanoseconds end = clock.now() + timeout;
    channel->WaitForConnected(std::chrono::system_clock::now() + timeout);
    // Where no time is left, enough to say why there is no connection.
    constexpr Milliseconds kLeast{100};
    return std::max(std::chrono::duration_cast<Milliseconds>(end - clock.now()), kLeast);
  }
};

CoordinatorClient::CoordinatorClient(std::string address, std::shared_ptr<Security> security)
    : address_(std::move(address)),
      options_(absl::StrCat("--coordinator ", address_)),
      security_(std::move(security)),
      connection_(std::make_unique<Connection>(address_, *security_)) {}
CoordinatorClient::~CoordinatorClient() = default;

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::make(
    const CoordinatorAccess& access) {
  POSEIDON_RETURN_IF_ERROR(
      parse_option_address("--coordinator", access.coordinator, PortZero::kRefused).status());
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<Security> security,
                            Security::load(access.security, PeerRole::kOperator));
  auto client = std::make_unique<CoordinatorClient>(access.coordinator, std::move(security));
  const auto name = [&client](const char* option, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&client->options_, " ", option, " ", shell_word(value));
  };
  name("--tls-dir", access.security.tls_dir);
  name("--join-token-file", access.security.join_token_file);
  return client;
}

absl::StatusOr<v1::GetStatusResponse> CoordinatorClient::get_status(Milliseconds timeout) {
  CallContext context(connection_->wait(timeout), *security_);
  v1::GetStatusRequest request;
  request.set_protocol_version(kProtocolVersion);
  v1::GetStatusResponse response;
  const grpc::Status status = connection_->stub->GetStatus(&context, request, &response);
  if (!status.ok()) {
    // A connection that breaks after it has worked does not have a problem with certificates.
    return has_answered_ ? answer_of(status, address_)
                         : security_->explain(answer_of(status, address_));
  }
  has_answered_ = true;
  return response;
}

absl::StatusOr<v1::GetStatusResponse> CoordinatorClient::wait_for_coordinator(
    Milliseconds patience) {
  const SystemClock clock;
  const Nanoseconds end = clock.now() + patience;
  while (true) {
    const auto left = std::chrono::duration_cast<Milliseconds>(end - clock.now());
    auto response = get_status(std::clamp(left, kPause, kStatusTimeout));
    if (response.ok() ||
        (!absl::IsUnavailable(response.status()) && !absl::IsDeadlineExceeded(response.status()))) {
      return response;
    }
    if (clock.now() + kPause >= end) {
      return absl::UnavailableError(absl::StrCat(
          "no coordinator answers at ", address_, " (tried for ",
          static_cast<double>(patience.count()) / 1000, " s, last: ", response.status().message(),
          "); is poseidon-coordinator running there, and is --coordinator its --listen address?"));
    }
    std::this_thread::sleep_for(kPause);  // it may answer at once that it is not ready yet
  }
}

absl::StatusOr<v1::SubmitResponse> CoordinatorClient::submit(const v1::SubmitRequest& request,
                                                             Milliseconds timeout) {
  return start_job(&v1::Coordinator::Stub::Submit, request, timeout);
}

absl::StatusOr<v1::SubmitResponse> CoordinatorClient::restore_checkpoint(
    const v1::RestoreCheckpointRequest& request, Milliseconds timeout) {
  return start_job(&v1::Coordinator::Stub::RestoreCheckpoint, request, timeout);
}

template <typename Method, typename Request>
absl::StatusOr<v1::SubmitResponse> CoordinatorClient::start_job(Method method,
                                                                const Request& request,
                                                                Milliseconds timeout) {
  CallContext context(timeout, *security_);
  context.set_wait_for_ready(
      true);  // nothing is sent, so nothing can be lost, before there is a connection
  v1::SubmitResponse response;
  const grpc::Status status = (connection_->stub.get()->*method)(&context, request, &response);
  if (status.ok()) return response;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::UnknownError(absl::StrCat(
        "the coordinator at ", address_, " did not answer the submission (", status.error_message(),
        "); it may or may not have started the job: ask 'poseidon status ", options_, "'"));
  }
  return answer_of(status, address_);
}

absl::Status CoordinatorClient::no_answer(const grpc::Status& status) const {
  return absl::UnavailableError(
      absl::StrCat("the coordinator at ", address_, " does not answer: ", status.error_message()));
}

template <typename Response, typename Method, typename Request>
absl::StatusOr<Response> CoordinatorClient::ask(Method method, Request request,
                                                Milliseconds timeout) {
  CallContext context(connection_->wait(timeout), *security_);
  request.set_protocol_version(kProtocolVersion);
  Response response;
  const grpc::Status status = (connection_->stub.get()->*method)(&context, request, &response);
  if (status.ok()) return response;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return no_answer(status);
  }
  return answer_of(status, address_);
}

absl::StatusOr<v1::ListCheckpointsResponse> CoordinatorClient::list_checkpoints(
    Milliseconds timeout) {
  return ask<v1::ListCheckpointsResponse>(&v1::Coordinator::Stub::ListCheckpoints,
                                          v1::ListCheckpointsRequest(), timeout);
}

absl::StatusOr<v1::RequestCheckpointResponse> CoordinatorClient::request_checkpoint(
    Milliseconds timeout) {
  return ask<v1::RequestCheckpointResponse>(&v1::Coordinator::Stub::RequestCheckpoint,
                                            v1::RequestCheckpointRequest(), timeout);
}

absl::StatusOr<v1::LocateCheckpointResponse> CoordinatorClient::locate_checkpoint(
    const v1::LocateCheckpointRequest& request, Milliseconds timeout) {
  return ask<v1::LocateCheckpointResponse>(&v1::Coordinator::Stub::LocateCheckpoint, request,
                                           timeout);
}

absl::StatusOr<v1::RemoveCheckpointsResponse> CoordinatorClient::remove_checkpoints(
    const v1::RemoveCheckpointsRequest& request, Milliseconds timeout) {
  return ask<v1::RemoveCheckpointsResponse>(&v1::Coordinator::Stub::RemoveCheckpoints, request,
                                            timeout);
}

absl::StatusOr<v1::EndJobResponse> CoordinatorClient::end_job(const v1::EndJobRequest& request,
                                                              Milliseconds timeout) {
  return ask<v1::EndJobResponse>(&v1::Coordinator::Stub::EndJob, request, timeout);
}

absl::StatusOr<v1::DrainNodeResponse> CoordinatorClient::drain_node(
    const v1::DrainNodeRequest& request, Milliseconds timeout) {
  return ask<v1::DrainNodeResponse>(&v1::Coordinator::Stub::DrainNode, request, timeout);
}

absl::StatusOr<TraceData> CoordinatorClient::trace(std::uint32_t iterations,
                                                   Milliseconds patience) {
  CallContext context(patience + kTraceCollectTimeout, *security_);
  v1::TraceRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_iterations(iterations);
  request.set_timeout_ms(static_cast<std::uint32_t>(patience.count()));
  const auto reader = connection_->stub->Trace(&context, request);
  TraceData data;
  v1::TracePart part;
  while (reader->Read(&part)) {
    if (!data.add(part)) return absl::InternalError("the coordinator sent parts that do not fit");
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) {
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::UnavailableError(absl::StrCat(
          "the coordinator at ", address_, " has not answered the question for a trace within ",
          std::chrono::duration_cast<std::chrono::seconds>(patience + kTraceCollectTimeout).count(),
          " s"));
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return no_answer(status);
    return answer_of(status, address_);
  }
  if (!data.has_tail) return absl::UnavailableError("the trace was cut off");
  return data;
}

}  // namespace poseidon
