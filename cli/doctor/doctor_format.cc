#include "cli/doctor/doctor_format.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/terminal/status_format.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;

std::string rate(const std::optional<double>& bytes_per_s) {
  return bytes_per_s ? scaled_text(*bytes_per_s * 8.0, "bit/s") : "-";
}
Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json node_to_json(const DoctorFacts::Node& node) {
  return {{"name", node.name},
          {"cores_used", node.used},
          {"cores_wanted", node.wanted},
          {"send_bytes_per_s", number(node.send_bytes_per_s)},
          {"receive_bytes_per_s", number(node.receive_bytes_per_s)},
          {"send_seconds", node.send_s},
          {"receive_seconds", node.receive_s},
          {"sent_bytes", node.sent_bytes},
          {"received_bytes", node.received_bytes}};
}

Json daemon_to_json(const DoctorFacts::Daemon& daemon) {
  Json json = {{"name", daemon.name},
               {"broken_streams", daemon.broken_streams},
               {"refused_messages", daemon.refused_messages},
               {"refused_connections", daemon.refused_connections},
               {"certificate_left_seconds", number(daemon.certificate_left_s)}};
  switch (daemon.role) {
    case DoctorFacts::Daemon::Role::kWorker:
      json["compute_before_seconds"] = number(daemon.compute_before_s);
      json["compute_now_seconds"] = number(daemon.compute_now_s);
      json["gpu_utilization"] = number(daemon.gpu_utilization);
      json["gpu_celsius"] = number(daemon.gpu_celsius);
      break;
    case DoctorFacts::Daemon::Role::kServer:
      json["streams"] = daemon.streams;
      json["paused_streams"] = daemon.paused_streams;
      json["store_errors"] = daemon.store_errors;
      json["disk_free_bytes"] = number(daemon.disk_free_bytes);
      json["snapshots_failed"] = daemon.snapshots_failed;
      break;
    case DoctorFacts::Daemon::Role::kCoordinator:
      json["checkpoints_failed"] = daemon.checkpoints_failed;
      json["iterations_since_checkpoint"] = daemon.iterations_since_checkpoint;
      break;
  }
  return json;
}

}  // namespace

std::string doctor_to_text(const DoctorFacts& facts, const std::vector<Finding>& findings) {
  const bool is_traced = !facts.workers.empty() || !facts.servers.empty();
  std::string text = "nothing was traced\n";
  if (is_traced) {
    text = absl::StrFormat("looked at %d iterations of %s\n", facts.iterations,
                           seconds_text(facts.iteration_s));
  }
  int number = 0;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "\n%d. %s: %s", ++number, finding_name(finding.kind),
                          finding.what);
    if (finding.cost_s > 0.0 && finding.kind != Finding::Kind::kCompute) {
      absl::StrAppendFormat(&text, " (costs about %s, %.0f %% of an iteration)",
                            seconds_text(finding.cost_s), finding.share * 100);
    }
    absl::StrAppend(&text, "\n   -> ", finding.remedy, "\n");
  }
  std::vector<std::vector<std::string>> table = {
      {"node", "computes", "waits", "samples", "sums", "sends", "receives"}};
  const auto add = [&table](const DoctorFacts::Node& node, std::vector<std::string> own) {
    std::vector<std::string> row = {node.name};
    row.insert(row.end(), own.begin(), own.end());
    row.push_back(rate(node.send_bytes_per_s));
    row.push_back(rate(node.receive_bytes_per_s));
    table.push_back(std::move(row));
  };
  for (const auto& worker : facts.workers) {
    add(worker.node, {seconds_text(worker.compute_mean_s), seconds_text(worker.stall_s),
                      seconds_text(worker.input_s), "-"});
  }
  for (const auto& server : facts.servers) {
    add(server.node, {"-", "-", "-", seconds_text(server.busy_s)});
  }
  if (is_traced) {
    absl::StrAppend(&text, "\nper iteration, and of each node's best stream:\n",
                    format_table(table));
  }
  for (const std::string& note : facts.notes) absl::StrAppend(&text, "note: ", note, "\n");
  return printable_lines(text);
}

Json doctor_to_json(const DoctorFacts& facts, const std::vector<Finding>& findings) {
  Json told = Json::array();
  for (const Finding& finding : findings) {
    told.push_back({{"kind", finding_name(finding.kind)},
                    {"guilty", finding.guilty},
                    {"cost_seconds", finding.cost_s},
                    {"cost_share", finding.share},
                    {"what", finding.what},
                    {"remedy", finding.remedy}});
  }
  Json workers = Json::array();
  for (const auto& worker : facts.workers) {
    Json json = node_to_json(worker.node);
    json["compute_seconds"] = worker.compute_s;
    json["compute_mean_seconds"] = worker.compute_mean_s;
    json["compute_quick_seconds"] = worker.compute_quick_s;
    json["stall_seconds"] = worker.stall_s;
    json["input_seconds"] = worker.input_s;
    workers.push_back(std::move(json));
  }
  Json servers = Json::array();
  for (const auto& server : facts.servers) {
    Json json = node_to_json(server.node);
    json["busy_seconds"] = server.busy_s;
    json["shard_bytes"] = server.shard_bytes;
    json["disk_share"] = server.disk_share;
    json["disk_bytes_per_s"] = server.disk_bytes_per_s;
    json["disk_waiting"] = server.disk_waiting;
    servers.push_back(std::move(json));
  }
  Json machines = Json::array();
  for (const auto& machine : facts.machines) {
    machines.push_back({{"processes", machine.processes},
                        {"cores", machine.cores},
                        {"cores_used", machine.used},
                        {"cores_wanted", machine.wanted}});
  }
  Json daemons = Json::array();
  for (const auto& daemon : facts.daemons) daemons.push_back(daemon_to_json(daemon));
  return {{"iterations", facts.iterations},
          {"iteration_seconds", facts.iteration_s},
          {"findings", told},
          {"workers", workers},
          {"servers", servers},
          {"metrics", daemons},
          {"machines", machines},
          {"notes", facts.notes}};
}

}  // namespace poseidon
