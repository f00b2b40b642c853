#include "cli/commands/plan_command.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/status_format.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "models/net/net.h"

namespace poseidon {
namespace {

constexpr std::array<std::size_t, 7> kScalingWorkers = {1, 2, 4, 8, 16, 32, 64};

absl::StatusOr<Plan> plan_for(const PlanQuestion& question, std::size_t workers,
                              std::size_t servers) {
  PlannerInput input{.layers = question.layers,
                     .batch_size = question.batch_size,
                     .epoch = Epoch(1),
                     .worker_addresses = {},
                     .server_addresses = {},
                     .sync = question.sync,
                     .norm_scope = question.norm_scope,
                     .calibration = assume_calibration(question.layers, question.batch_size,
                                                       workers, servers, question.machines)};
  if (!question.machines_known) input.sync.cost = "bytes";
  const std::size_t each = question.workers_per_machine;
  const std::size_t machines = (workers + each - 1) / each;
  for (std::size_t i = 0; i < workers; ++i) {
    input.worker_addresses.push_back(absl::StrCat("node-", i / each, ":", 4702 + i % each));
  }
  for (std::size_t i = 0; i < servers; ++i) {
    input.server_addresses.push_back(question.separate_servers
                                         ? absl::StrCat("server-", i, ":4701")
                                         : absl::StrCat("node-", i % machines, ":", 6000 + i));
  }
  return make_plan(input);
}

ScalingRow scaling_row(const Plan& plan) {
  const PlanPrediction& predicted = *plan.prediction;
  ScalingRow row{
      .workers = plan.workers(), .servers = plan.servers(), .iteration_s = predicted.iteration_s};
  const auto workers = static_cast<double>(plan.workers());
  row.images_per_s = workers * static_cast<double>(plan.batch_size) / predicted.iteration_s;
  row.efficiency = predicted.compute_s / predicted.iteration_s;
  row.speedup = workers * row.efficiency;
  row.sfb_layers = static_cast<std::size_t>(
      std::count_if(plan.layers.begin(), plan.layers.end(),
                    [](const PlanLayer& layer) { return layer.scheme == Scheme::kSfb; }));
  return row;
}

// ---- text ----

std::string format_bytes(std::int64_t bytes) {
  return bytes == 0 ? "-" : bytes_text(static_cast<double>(bytes));
}

std::string heading(const PlanQuestion& question, const PlanAnswer& answer) {
  const AssumedMachines& machines = question.machines;
  const std::string to_a_machine =
      question.workers_per_machine > 1
          ? absl::StrCat(" (", question.workers_per_machine, " to a machine)")
          : "";
  std::string text = absl::StrFormat(
      "%s: %d workers%s, %d servers %s, batch %d per worker\n", question.name, question.workers,
      to_a_machine, question.servers,
      question.separate_servers ? "on machines of their own" : "on the workers' machines",
      question.batch_size);
  absl::StrAppend(&text, "assumed: ", scaled_text(machines.bandwidth_bytes_per_s * 8, "bit/s"),
                  " each way, latency ", seconds_text(machines.latency_s), ", device ",
                  scaled_text(answer.plan.calibration->device_ops_per_s, "FLOP/s"));
  if (machines.images_per_s) {
    absl::StrAppend(&text, ", one worker alone ", absl::StrFormat("%g", *machines.images_per_s),
                    " images/s");
  }
  absl::StrAppend(&text, "\n");
  if (!answer.plan.leaders.empty()) {
    absl::StrAppend(&text, "gradients of the ", question.workers_per_machine,
                    " workers of a machine are summed before they go to the servers "
                    "(sync.local_aggregation): a node is a machine\n");
  }
  if (answer.by_time) {
    absl::StrAppend(&text, "schemes chosen for the shortest iteration (sync.cost \"time\")\n");
  } else if (question.sync.cost == "time") {
    absl::StrAppend(&text,
                    "schemes chosen for the fewest bytes, as in a cluster that was not calibrated; "
                    "with --bandwidth they are chosen for the shortest iteration\n");
  } else {
    absl::StrAppend(&text, "schemes chosen for the fewest bytes (sync.cost \"bytes\")\n");
  }
  return text;
}

std::string layer_table(const Plan& plan) {
  std::vector<std::vector<std::string>> table = {{"LAYER", "TYPE", "SHAPE", "PARAMETERS",
                                                  "PS BYTES", "PS TIME", "SFB BYTES", "SFB TIME",
                                                  "REBUILD", "SCHEME", "WHY"}};
  std::int64_t ps_bytes = 0, chosen_bytes = 0;
  double chosen_s = 0.0;
  for (const PlanLayer& layer : plan.layers) {
    const LayerPrediction& predicted = *layer.prediction;
    const bool ps = layer.scheme == Scheme::kPs;
    table.push_back({layer.name, layer.type, shape_to_string(layer.shape),
                     format_count(layer.parameters), format_bytes(layer.ps_bytes),
                     seconds_text(predicted.ps_s), format_bytes(layer.sfb_bytes),
                     seconds_text(predicted.sfb_s), seconds_text(predicted.rebuild_s),
                     std::string(scheme_name(layer.scheme)), layer.reason});
    ps_bytes += layer.ps_bytes;
    chosen_bytes += ps ? layer.ps_bytes : layer.sfb_bytes;
    chosen_s += ps ? predicted.ps_s : predicted.sfb_s;
  }
  return absl::StrCat(format_table(table), "\nper node and iteration: ", format_bytes(chosen_bytes),
                      " (all by PS ", format_bytes(ps_bytes),
                      "); the busiest NIC direction is busy for ", seconds_text(chosen_s), "\n");
}

std::string prediction_text(const Plan& plan) {
  const PlanPrediction& predicted = *plan.prediction;
  const ScalingRow row = scaling_row(plan);
  return absl::StrFormat(
      "predicted iteration: %s, of which computing %s: efficiency %.1f%%, %s images/s\n"
      "chunks of at most %s\n"
      "alternatives: all by PS %s, all fully connected layers by SFB %s, fewest bytes %s\n",
      seconds_text(predicted.iteration_s), seconds_text(predicted.compute_s),
      100.0 * row.efficiency, format_count(std::llround(row.images_per_s)),
      format_bytes(plan.chunk_bytes), seconds_text(predicted.all_ps_s),
      seconds_text(predicted.all_sfb_s), seconds_text(predicted.by_bytes_s));
}

}  // namespace

absl::StatusOr<PlanAnswer> answer_plan(const PlanQuestion& question) {
  POSEIDON_ASSIGN_OR_RETURN(Plan plan, plan_for(question, question.workers, question.servers));
  PlanAnswer answer{.plan = std::move(plan),
                    .by_time = question.machines_known && question.sync.cost == "time",
                    .scaling = {}};
  for (const std::size_t workers : kScalingWorkers) {
    // In the proportion asked for, rounded.
    const std::size_t servers = std::max<std::size_t>(
        1, (workers * question.servers + question.workers / 2) / question.workers);
    POSEIDON_ASSIGN_OR_RETURN(const Plan scaled, plan_for(question, workers, servers));
    answer.scaling.push_back(scaling_row(scaled));
  }
  return answer;
}

nlohmann::ordered_json plan_answer_to_json(const PlanQuestion& question, const PlanAnswer& answer) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(plan_to_json(answer.plan));
  for (const char* invented : {"epoch", "worker_addresses", "server_addresses"}) {
    json.erase(invented);
  }
  json["cost"] = answer.by_time ? "time" : "bytes";
  json["workers_per_machine"] = question.workers_per_machine;
  json["separate_servers"] = question.separate_servers;
  json["scaling"] = nlohmann::ordered_json::array();
  for (const ScalingRow& row : answer.scaling) {
    json["scaling"].push_back({{"workers", row.workers},
                               {"servers", row.servers},
                               {"iteration_seconds", row.iteration_s},
                               {"images_per_s", row.images_per_s},
                               {"speedup", row.speedup},
                               {"efficiency", row.efficiency},
                               {"sfb_layers", row.sfb_layers}});
  }
  return json;
}

std::string plan_answer_to_text(const PlanQuestion& question, const PlanAnswer& answer) {
  std::vector<std::vector<std::string>> scaling = {
      {"WORKERS", "SERVERS", "ITERATION", "IMAGES/S", "SPEED-UP", "EFFICIENCY", "BY SFB"}};
  for (const ScalingRow& row : answer.scaling) {
    scaling.push_back(
        {absl::StrCat(row.workers), absl::StrCat(row.servers), seconds_text(row.iteration_s),
         format_count(std::llround(row.images_per_s)), absl::StrFormat("%.2f", row.speedup),
         absl::StrFormat("%.1f%%", 100.0 * row.efficiency), absl::StrCat(row.sfb_layers)});
  }
  return absl::StrCat(heading(question, answer), "\n", layer_table(answer.plan),
                      prediction_text(answer.plan), "\n", format_table(scaling));
}

}  // namespace poseidon
