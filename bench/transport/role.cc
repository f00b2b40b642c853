// One process of a run. Called by: cluster.cc, which starts it. Calls: the variant's end, which
// does the work.

#include "bench/transport/role.h"

#include <signal.h>
#include <sys/prctl.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/transport/control.h"
#include "bench/transport/variant.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/security/security.h"

namespace poseidon::bench {
namespace {

using nlohmann::json;

struct Task {
  const Variant* variant;
  std::uint32_t index;
  Shape shape;
  std::shared_ptr<Security> security;
};

/// What a process does when the parent says "do".
class Role {
 public:
  explicit Role(Task task) : task_(std::move(task)) {}
  virtual ~Role() = default;
  virtual absl::StatusOr<json> begin() = 0;
  virtual absl::Status carry_out(const std::string& command, const json& message) = 0;

 protected:
  absl::StatusOr<Plan> plan(const json& message) const {
    return plan_for(task_.shape, message.at("servers").get<std::vector<std::string>>());
  }
  static absl::Status unknown(const std::string& command) {
    return absl::InvalidArgumentError(absl::StrCat("no command \"", command, "\" here"));
  }
  const Task task_;
};

class ServerRole final : public Role {
 public:
  using Role::Role;

  absl::StatusOr<json> begin() override {
    end_ = task_.variant->make_server(task_.security);
    POSEIDON_ASSIGN_OR_RETURN(const std::string address, end_->listen());
    return json{{"address", address}};
  }

  absl::Status carry_out(const std::string& command, const json& message) override {
    if (command != "serve") return unknown(command);
    POSEIDON_ASSIGN_OR_RETURN(const Plan plan, this->plan(message));
    return end_->serve(plan, ServerIndex(task_.index));
  }

 private:
  std::unique_ptr<ServerEnd> end_;
};

class WorkerRole final : public Role {
 public:
  using Role::Role;

  absl::StatusOr<json> begin() override { return json::object(); }

  absl::Status carry_out(const std::string& command, const json& message) override {
    if (command == "connect") return connect(message);
    if (command == "run") return run(message.at("first"), message.at("iterations"));
    if (command == "check") return workload_->check(task_.variant->answer, message.at("iteration"));
    return unknown(command);
  }

 private:
  absl::Status connect(const json& message) {
    POSEIDON_ASSIGN_OR_RETURN(plan_, plan(message));
    const WorkerRank rank(task_.index);
    workload_.emplace(plan_, rank);
    end_ = task_.variant->make_worker(
        {.plan = &plan_, .rank = rank, .workload = &*workload_, .security = task_.security});
    return end_->connect();
  }

  absl::Status run(Iteration first, Iteration iterations) {
    for (Iteration i = first; i < first + iterations; ++i) {
      workload_->prepare(i);
      POSEIDON_RETURN_IF_ERROR(end_->iterate(i));
    }
    return absl::OkStatus();
  }

  Plan plan_;
  std::optional<Workload> workload_;
  std::unique_ptr<WorkerEnd> end_;  ///< goes first
};

absl::StatusOr<Task> read_task(const ControlLine& line, PeerRole self) {
  POSEIDON_ASSIGN_OR_RETURN(const json message, line.receive(kEndTimeout));
  Task task{.variant = find_variant(message.at("variant").get<std::string>()),
            .index = message.at("index"),
            .shape = {.workers = message.at("workers"),
                      .servers = message.at("servers"),
                      .mib = message.at("mib"),
                      .chunk_bytes = message.at("chunk_bytes"),
                      .wire_type = wire_dtype_from_name(message.at("wire_dtype").get<std::string>())
                                       .value_or(ElementType::kNone)},
            .security = nullptr};
  if (task.variant == nullptr) return absl::InvalidArgumentError("no such variant");
  POSEIDON_ASSIGN_OR_RETURN(
      task.security,
      Security::load({.tls_dir = message.at("tls_dir"), .join_token_file = ""}, self));
  return task;
}

}  // namespace

absl::Status run_role(const std::string& role, int control) {
  // The parent may be killed at any time; nothing of ours may stay behind.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return absl::ErrnoToStatus(errno, "prctl");
  ::signal(SIGPIPE, SIG_IGN);
  const ControlLine line{Descriptor(control)};
  POSEIDON_ASSIGN_OR_RETURN(
      const Task task, read_task(line, role == "server" ? PeerRole::kServer : PeerRole::kWorker));
  task.variant->prepare_process();
  std::unique_ptr<Role> self;
  if (role == "server") {
    self = std::make_unique<ServerRole>(task);
  } else {
    self = std::make_unique<WorkerRole>(task);
  }
  POSEIDON_ASSIGN_OR_RETURN(const json begun, self->begin());
  POSEIDON_RETURN_IF_ERROR(line.send(begun));
  while (true) {
    const absl::StatusOr<json> message = line.receive(kEndTimeout);
    if (absl::IsUnavailable(message.status())) return absl::OkStatus();  // the run is over
    if (!message.ok()) return message.status();
    const std::string command = message->at("do");
    json answer = json::object();
    if (command == "usage") {
      answer["cpu_s"] = process_cpu_seconds();
    } else {
      POSEIDON_RETURN_IF_ERROR(self->carry_out(command, *message));
    }
    POSEIDON_RETURN_IF_ERROR(line.send(answer));
  }
}

}  // namespace poseidon::bench
