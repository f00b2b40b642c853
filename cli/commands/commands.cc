#include "cli/commands/commands.h"

#include <cmath>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands/job_file.h"
#include "cli/commands/models_command.h"
#include "cli/commands/plan_command.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/outcome.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/quantity.h"
#include "cli/terminal/status_format.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/daemon/daemon.h"
#include "common/pages/status_json.h"
#include "coordinator/planning/jobs/job_resolver.h"
#include "models/shipped.h"

namespace poseidon {
namespace {

constexpr std::int64_t kMaxPlannedNodes = 4096;
constexpr std::int64_t kMaxCount = 1 << 20;  // the coordinator knows the real limit

/// Names and messages come from other machines: invalid UTF-8 in them is replaced instead of
/// throwing.
std::string dump(const nlohmann::json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<NetSpec> network_by_name(const std::string& name) {
  return resolve_network(nlohmann::json(name), std::filesystem::current_path());
}

}  // namespace

absl::Status run_submit(const SubmitOptions& options) {
  POSEIDON_RETURN_IF_ERROR(
      parse_option_address("--coordinator", options.coordinator, PortZero::kRefused).status());
  if (!options.run_dir.empty()) POSEIDON_RETURN_IF_ERROR(check_run_dir(options.run_dir));
  for (const auto& [flag, count] :
       {std::pair("--workers", options.workers), {"--servers", options.servers}}) {
    if (count && (*count < 1 || *count > kMaxCount)) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", *count, " must be between 1 and ", kMaxCount, ", or left out"));
    }
  }
  auto prepared = prepare_job_of_workers(options.job_path);
  // Every error in the job file is an error of the call.
  if (!prepared.ok()) return absl::InvalidArgumentError(prepared.status().message());

  print_warnings(job_warnings(prepared->spec));

  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  POSEIDON_RETURN_IF_ERROR(client->wait_for_coordinator(options.connect_timeout).status());
  v1::SubmitRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_job_json(prepared->json);
  request.set_run_directory(options.run_dir);
  request.set_workers(static_cast<std::uint32_t>(options.workers.value_or(0)));
  request.set_servers(static_cast<std::uint32_t>(options.servers.value_or(0)));
  POSEIDON_ASSIGN_OR_RETURN(const v1::SubmitResponse response,
                            client->submit(request, kSubmitTimeout));
  return follow_job(*client, response, options.follow);
}

absl::Status run_status(const StatusOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  POSEIDON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                            client->wait_for_coordinator(options.connect_timeout));
  write_stdout(options.json ? dump(status_to_json(status)) : status_to_text(status));
  return absl::OkStatus();
}

absl::Status run_plan(const PlanOptions& options) {
  for (const auto& [flag, count] :
       {std::pair("--workers", options.workers), {"--servers", options.servers}}) {
    if (count < 1 || count > kMaxPlannedNodes) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", count, " must be between 1 and ", kMaxPlannedNodes));
    }
  }
  AssumedMachines machines;
  if (!options.bandwidth.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(machines.bandwidth_bytes_per_s,
                              parse_bandwidth("--bandwidth", options.bandwidth));
  }
  if (!options.latency.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(machines.latency_s, parse_latency("--latency", options.latency));
  }
  if (!options.device_flops.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(machines.device_ops_per_s,
                              parse_operations("--device-flops", options.device_flops));
  }
  // From one image in three hours to more than any machine reaches.
  if (options.images_per_s && !(*options.images_per_s >= 1e-4 && *options.images_per_s <= 1e9)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--images-per-s ", *options.images_per_s,
                     " must be from 0.0001 to 1e9: training speed of one worker alone"));
  }
  machines.images_per_s = options.images_per_s;

  auto prepared = prepare_job(options.job_path);
  if (!prepared.ok()) return absl::InvalidArgumentError(prepared.status().message());
  const PlanQuestion question{
      .name = prepared->spec.name,
      .layers = planner_layers(prepared->layout),
      .batch_size = prepared->spec.batch_size,
      .sync = prepared->spec.sync,
      .workers = static_cast<std::size_t>(options.workers),
      .servers = static_cast<std::size_t>(options.servers),
      .workers_per_machine = static_cast<std::size_t>(options.workers_per_machine),
      .separate_servers = options.separate_servers,
      .norm_scope = norm_scope(prepared->spec.optimizer),
      .machines = machines,
      .machines_known = !options.bandwidth.empty() || !options.latency.empty() ||
                        !options.device_flops.empty() || options.images_per_s.has_value()};
  const auto answer = answer_plan(question);
  if (!answer.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.job_path, ": ", answer.status().message()));
  }
  write_stdout(options.json ? plan_answer_to_json(question, *answer).dump(2) + "\n"
                            : plan_answer_to_text(question, *answer));
  return absl::OkStatus();
}

absl::Status run_models(const ModelsOptions& options) {
  if (options.name) {
    auto net = network_by_name(*options.name);
    if (!net.ok()) return absl::InvalidArgumentError(net.status().message());
    write_stdout(options.json ? dump(network_to_json(*net)) : network_to_text(*net));
    return absl::OkStatus();
  }
  nlohmann::json json = nlohmann::json::array();
  std::vector<std::vector<std::string>> table = {
      {"NAME", "INPUT", "CLASSES", "PARAMETERS", "MULTIPLY-ADDS"}};
  for (const std::string& name : shipped_model_names()) {
    POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, network_by_name(name));
    json.push_back({{"name", name},
                    {"parameters", net.parameter_count()},
                    {"multiply_adds", net.multiply_adds()},
                    {"input_shape", net.input_shape},
                    {"classes", net.classes}});
    table.push_back({name, shape_to_string(net.input_shape), format_count(net.classes),
                     format_count(net.parameter_count()), format_count(net.multiply_adds())});
  }
  write_stdout(options.json ? dump(json) : format_table(table));
  return absl::OkStatus();
}

}  // namespace poseidon
