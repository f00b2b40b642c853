#include "cli/commands/drain_command.h"

#include <chrono>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/terminal/outcome.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr Milliseconds kDrainPollInterval{200};

}  // namespace

std::string state_of_node(const v1::GetStatusResponse& status, std::uint64_t node_id) {
  for (const auto* group : {&status.workers(), &status.servers()}) {
    for (const v1::NodeStatus& node : *group) {
      if (node.node_id() == node_id) return node.state();
    }
  }
  return "";
}

absl::Status run_drain(const DrainOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  POSEIDON_RETURN_IF_ERROR(client->wait_for_coordinator(options.connect_timeout).status());
  v1::DrainNodeRequest request;
  request.set_node(options.node);
  request.set_undo(options.undo);
  POSEIDON_ASSIGN_OR_RETURN(const v1::DrainNodeResponse answer,
                            client->drain_node(request, kCallTimeout));
  const std::string node =
      absl::StrCat(answer.role() == v1::NODE_ROLE_SERVER ? "server " : "worker ", options.node);
  if (options.undo) {
    write_stdout(absl::StrCat(printable(node), " may be used again\n"));
    return absl::OkStatus();
  }
  const SystemClock clock;
  const Nanoseconds end = clock.now() + std::chrono::seconds(options.timeout_s);
  std::string state = answer.drained() ? "drained" : "draining";
  std::string message;
  while (state != "drained") {
    if (clock.now() >= end) {
      return absl::DeadlineExceededError(
          absl::StrCat(node, " is still ", state, " after ", options.timeout_s, " s",
                       message.empty() ? "" : absl::StrCat(" (the job ", message, ")"),
                       "; it stays so: ask again, or take it back with --undo"));
    }
    std::this_thread::sleep_for(kDrainPollInterval);
    const absl::StatusOr<v1::GetStatusResponse> status = client->get_status(kStatusTimeout);
    if (!status.ok()) {
      message = std::string(status.status().message());
      continue;
    }
    message = status->message();
    state = state_of_node(*status, answer.node_id());
    if (state.empty()) {
      return absl::NotFoundError(
          absl::StrCat(node, " is gone: it left, or was lost, before it was drained"));
    }
  }
  write_stdout(
      absl::StrCat(printable(node), " is drained: no job uses it, and it may be stopped\n"));
  return absl::OkStatus();
}

}  // namespace poseidon
