#include "coordinator/records/durable_job.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"
#include "common/plan/plan_proto.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSource = "state of the job";
/// Of the record itself; grows with every change that an older coordinator would misread.
constexpr std::int64_t kVersion = 1;
constexpr JsonLimits kLimits{.max_bytes = 256 << 20, .max_depth = 8};
constexpr std::int64_t kMaxCount = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kMaxNodes = 65536;

/// What people read may name every node of a large cluster; the record must stay readable.
std::string short_text(const std::string& text) {
  return std::string(utf8_prefix(text, JsonFields::kMaxStringBytes));
}

ordered_json to_json(const NodeInfo& node) {
  ordered_json out = {
      {"id", node.id.value()}, {"process_id", node.process_id}, {"incarnation", node.incarnation}};
  const auto text = [&out](const char* key, const std::string& value) {
    if (!value.empty()) out[key] = value;
  };
  text("address", node.address);
  text("device", node.device);
  text("metrics_address", node.metrics_address);
  text("software_version", node.software_version);
  text("store_identity", node.store_identity);
  text("peer_host", node.peer_host);
  return out;
}

ordered_json to_json(const std::vector<NodeInfo>& nodes) {
  ordered_json out = ordered_json::array();
  for (const NodeInfo& node : nodes) out.push_back(to_json(node));
  return out;
}

absl::StatusOr<NodeInfo> node_from_json(const nlohmann::json& value, NodeRole role,
                                        const std::string& path) {
  JsonFields fields(value, kSource, path);
  NodeInfo node;
  node.role = role;
  std::uint64_t id = 0;
  std::int64_t process_id = 0;
  fields.require("id");
  fields.unsigned_integer("id", &id);
  fields.integer("process_id", &process_id, 0, kMaxCount);
  fields.unsigned_integer("incarnation", &node.incarnation);
  fields.string("address", &node.address);
  fields.string("device", &node.device);
  fields.string("metrics_address", &node.metrics_address);
  fields.string("software_version", &node.software_version);
  fields.string("store_identity", &node.store_identity);
  fields.string("peer_host", &node.peer_host);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  node.id = NodeId(id);
  node.process_id = static_cast<std::uint32_t>(process_id);
  return node;
}

absl::StatusOr<std::vector<NodeInfo>> nodes_from_json(const nlohmann::json& values, NodeRole role,
                                                      const std::string& path) {
  std::vector<NodeInfo> nodes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    POSEIDON_ASSIGN_OR_RETURN(NodeInfo node,
                              node_from_json(values[i], role, absl::StrCat(path, "[", i, "]")));
    nodes.push_back(std::move(node));
  }
  return nodes;
}

absl::StatusOr<Plan> plan_from_text(const std::string& text) {
  std::string bytes;
  v1::PlanMessage message;
  if (!absl::Base64Unescape(text, &bytes) || !message.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(kSource, ": the plan cannot be read"));
  }
  return plan_from_message(message);
}

absl::Status check_fits(const DurableJob::Running& running) {
  const auto same = [](const std::vector<NodeInfo>& nodes,
                       const std::vector<std::string>& planned) {
    bool equal = nodes.size() == planned.size();
    for (std::size_t i = 0; equal && i < nodes.size(); ++i) equal = nodes[i].address == planned[i];
    return equal;
  };
  if (running.plan.epoch.value() >= kEpochs) {
    return absl::InvalidArgumentError(
        absl::StrCat(kSource, ": epoch ", running.plan.epoch.value(), " is not below ", kEpochs));
  }
  if (!running.stopped && (!same(running.workers, running.plan.worker_addresses) ||
                           !same(running.servers, running.plan.server_addresses))) {
    return absl::InvalidArgumentError(
        absl::StrCat(kSource, ": the nodes are not those of the plan"));
  }
  std::set<NodeId> ids;
  for (const auto* group : {&running.workers, &running.servers}) {
    for (const NodeInfo& node : *group) {
      if (ids.insert(node.id).second) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(kSource, ": node ", node.id.value(), " is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SnapshotId>> snapshots_from_json(const nlohmann::json& values,
                                                            JsonFields& fields) {
  std::vector<SnapshotId> snapshots;
  bool are_names = values.is_array();
  for (std::size_t i = 0; are_names && i < values.size(); ++i) {
    const auto snapshot = values[i].is_string() ? parse_snapshot_name(values[i].get<std::string>())
                                                : std::optional<SnapshotId>();
    are_names = snapshot.has_value();
    if (snapshot) snapshots.push_back(*snapshot);
  }
  if (!are_names) fields.refuse("abandoned", "expected an array of EPOCH-ITERATION");
  POSEIDON_RETURN_IF_ERROR(fields.status());
  return snapshots;
}

absl::StatusOr<DurableJob::Running> running_from_json(const nlohmann::json& value) {
  JsonFields fields(value, kSource, "running");
  for (const char* key : {"plan", "workers", "servers"}) fields.require(key);
  DurableJob::Running running;
  const nlohmann::json* const plan = fields.value("plan");
  const nlohmann::json* const workers = fields.array("workers", "workers", 1, kMaxNodes);
  const nlohmann::json* const servers = fields.array("servers", "servers", 1, kMaxNodes);
  fields.string("plan_basis", &running.plan_basis);
  fields.integer("first_iteration", &running.first_iteration, 0,
                 (Iteration{1} << kSnapshotIterationBits) - 1);
  fields.integer("begun_with", &running.begun_with, 1, std::numeric_limits<std::uint32_t>::max());
  fields.integer("samples", &running.samples, 0, std::numeric_limits<std::int64_t>::max());
  fields.integer("started_unix_ms", &running.started_unix_ms, 0,
                 std::numeric_limits<std::int64_t>::max());
  fields.string("recovering_from", &running.recovering_from);
  fields.boolean("stopped", &running.stopped);
  fields.boolean("has_checkpoints", &running.has_checkpoints);
  const nlohmann::json* const lost = fields.value("lost");
  const nlohmann::json* const abandoned = fields.value("abandoned");
  const nlohmann::json* const data = fields.value("data");
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  if (lost != nullptr) {
    const bool are_ids =
        lost->is_array() && std::all_of(lost->begin(), lost->end(),
                                        [](const auto& id) { return id.is_number_unsigned(); });
    if (!are_ids) fields.refuse("lost", "expected node ids");
    POSEIDON_RETURN_IF_ERROR(fields.status());
    for (const nlohmann::json& id : *lost) running.lost.emplace_back(id.get<std::uint64_t>());
  }
  if (data != nullptr) {
    POSEIDON_ASSIGN_OR_RETURN(running.data,
                              data_identity_from_json(*data, kSource, "running.data"));
  }
  if (abandoned != nullptr) {
    POSEIDON_ASSIGN_OR_RETURN(running.abandoned, snapshots_from_json(*abandoned, fields));
  }
  if (!plan->is_string()) fields.refuse("plan", "expected a text");
  POSEIDON_RETURN_IF_ERROR(fields.status());
  POSEIDON_ASSIGN_OR_RETURN(running.plan, plan_from_text(plan->get<std::string>()));
  POSEIDON_ASSIGN_OR_RETURN(running.workers,
                            nodes_from_json(*workers, NodeRole::kWorker, "running.workers"));
  POSEIDON_ASSIGN_OR_RETURN(running.servers,
                            nodes_from_json(*servers, NodeRole::kServer, "running.servers"));
  POSEIDON_RETURN_IF_ERROR(check_fits(running));
  return running;
}

}  // namespace

std::string durable_job_to_json(const DurableJob& job) {
  ordered_json out = {{"version", kVersion},
                      {"id", job.id},
                      {"run_directory", job.run_directory},
                      {"workers", job.workers},
                      {"servers", job.servers}};
  if (job.source) out["source"] = snapshot_name(*job.source);
  if (job.running) {
    ordered_json running = {
        {"started_unix_ms", job.running->started_unix_ms},
        {"first_iteration", job.running->first_iteration},
        {"begun_with", job.running->begun_with},
        {"samples", job.running->samples},
        {"workers", to_json(job.running->workers)},
        {"servers", to_json(job.running->servers)},
        {"plan", absl::Base64Escape(plan_to_message(job.running->plan).SerializeAsString())}};
    if (job.running->has_checkpoints) running["has_checkpoints"] = true;
    if (!job.running->plan_basis.empty())
      running["plan_basis"] = short_text(job.running->plan_basis);
    if (job.running->data) running["data"] = data_identity_to_json(*job.running->data);
    if (!job.running->abandoned.empty()) {
      running["abandoned"] = ordered_json::array();
      for (const SnapshotId id : job.running->abandoned) {
        running["abandoned"].push_back(snapshot_name(id));
      }
    }
    if (!job.running->recovering_from.empty()) {
      running["recovering_from"] = short_text(job.running->recovering_from);
      running["stopped"] = job.running->stopped;
      running["lost"] = ordered_json::array();
      for (const NodeId id : job.running->lost) running["lost"].push_back(id.value());
    }
    out["running"] = std::move(running);
  }
  out["job"] = job.job_json;
  return checked_json(out);
}

absl::StatusOr<DurableJob> durable_job_from_json(std::string_view text) {
  POSEIDON_ASSIGN_OR_RETURN(const nlohmann::json value, parse_checked_json(text, kSource, kLimits));
  JsonFields fields(value, kSource, "");
  for (const char* key : {"version", "id", "run_directory", "job"}) fields.require(key);
  DurableJob job;
  std::int64_t version = 0;
  std::int64_t workers = 0;
  std::int64_t servers = 0;
  fields.integer("version", &version, kVersion, kVersion);
  fields.string("id", &job.id);
  fields.string("run_directory", &job.run_directory);
  fields.integer("workers", &workers, 0, kMaxCount);
  fields.integer("servers", &servers, 0, kMaxCount);
  std::string source;
  fields.string("source", &source);
  const nlohmann::json* const running = fields.value("running");
  const nlohmann::json* const job_json = fields.value("job");
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  if (!job_json->is_string()) fields.refuse("job", "expected a text");
  if (job.run_directory.front() != '/') fields.refuse("run_directory", "expected an absolute path");
  job.source = parse_snapshot_name(source);
  if (!source.empty() && !job.source) fields.refuse("source", "expected EPOCH-ITERATION");
  POSEIDON_RETURN_IF_ERROR(fields.status());
  job.workers = static_cast<std::uint32_t>(workers);
  job.servers = static_cast<std::uint32_t>(servers);
  job.job_json = job_json->get<std::string>();
  if (running != nullptr) {
    POSEIDON_ASSIGN_OR_RETURN(job.running, running_from_json(*running));
  }
  return job;
}

namespace {

/// Without nodes and layers, which are not the job's any more.
void keep_the_job(v1::GetStatusResponse& status) {
  status.clear_workers();
  status.clear_servers();
  status.clear_layers();
  status.clear_refused();
}

}  // namespace

Iteration completed_iterations(const DurableJob::Running& running,
                               const std::vector<CheckpointManifest>& committed, Iteration told) {
  Iteration least = running.first_iteration;
  if (running.stopped) {
    for (const CheckpointManifest& manifest : committed) {
      const bool is_abandoned =
          std::ranges::find(running.abandoned, manifest.snapshot) != running.abandoned.end();
      if (!is_abandoned) least = std::min(least, manifest.iteration());
    }
  }
  return std::max(told, least);
}

v1::GetStatusResponse status_without_job() {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  v1::GetStatusResponse out;
  out.set_state("idle");
  out.set_loss(kNone);
  out.set_test_loss(kNone);
  out.set_test_accuracy(kNone);
  out.set_predicted_iteration_seconds(kNone);
  out.set_measured_iteration_seconds(kNone);
  return out;
}

std::string unknown_end_text(const CheckpointManifest* newest) {
  const std::string text =
      "no job is in progress, and how the last one ended, if there was one, is not known";
  if (newest == nullptr) return text;
  return absl::StrCat(text, "; the newest checkpoint is ", snapshot_name(newest->snapshot), " of ",
                      newest->job_id, " (`poseidon checkpoint list`)");
}

absl::StatusOr<std::string> outcome_to_json(const v1::GetStatusResponse& status) {
  v1::GetStatusResponse job = status;
  keep_the_job(job);
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto written = google::protobuf::util::MessageToJsonString(job, &text, options);
  if (written.ok()) return text;
  return absl::InternalError(
      absl::StrCat("the job's outcome cannot be written down: ", std::string(written.message())));
}

absl::StatusOr<v1::GetStatusResponse> outcome_from_json(std::string_view text) {
  v1::GetStatusResponse status;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto read =
      google::protobuf::util::JsonStringToMessage({text.data(), text.size()}, &status, options);
  if (!read.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last job's outcome cannot be read: ", std::string(read.message())));
  }
  if (status.state() != "done" && status.state() != "stopped" && status.state() != "failed") {
    return absl::InvalidArgumentError(absl::StrCat(
        "the last job's outcome: state \"", status.state(), "\" is none that a job ends in"));
  }
  keep_the_job(status);
  return status;
}

}  // namespace poseidon
