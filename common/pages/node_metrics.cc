#include "common/pages/node_metrics.h"

#include <array>
#include <optional>
#include <system_error>
#include <utility>

#include "common/base/check.h"

namespace poseidon {
namespace {

enum class Shown : std::uint8_t { kWorker, kServer, kBoth };

bool shows(Shown where, bool is_server) {
  return where == Shown::kBoth || (where == Shown::kServer) == is_server;
}

/// Rows of one name stand together; the help is the first one's.
struct CountRow {
  NodeCount what;
  Shown where;
  const char* name;
  const char* help;
  const char* label = nullptr;  ///< its name and its value; none where null
  const char* value = nullptr;
};

constexpr const char* kRetries = "poseidon_retries_total";
constexpr const char* kFaults = "poseidon_training_faults_total";
constexpr const char* kSnapshots = "poseidon_snapshots_total";

constexpr std::array kCounts = {
    CountRow{NodeCount::kImages, Shown::kWorker, "poseidon_images_total",
             "Training samples that this worker has computed gradients of"},
    CountRow{NodeCount::kRetriesCoordinator, Shown::kBoth, kRetries,
             "Streams that broke or could not be opened; each is tried again", "peer",
             "coordinator"},
    CountRow{NodeCount::kRetriesServer, Shown::kWorker, kRetries, "", "peer", "server"},
    CountRow{NodeCount::kRetriesWorker, Shown::kWorker, kRetries, "", "peer", "worker"},
    CountRow{NodeCount::kNotFinite, Shown::kBoth, kFaults,
             "Errors of training that end a job: values that are no finite number, copies of a "
             "layer that differ",
             "fault", "not_finite"},
    CountRow{NodeCount::kReplicasDiffer, Shown::kWorker, kFaults, "", "fault", "replicas_differ"},
    CountRow{NodeCount::kSnapshotsSealed, Shown::kServer, kSnapshots,
             "This server's parts of checkpoints, by result", "result", "sealed"},
    CountRow{NodeCount::kSnapshotsFailed, Shown::kServer, kSnapshots, "", "result", "failed"},
    CountRow{NodeCount::kSnapshotBytes, Shown::kServer, "poseidon_snapshot_written_bytes_total",
             "Parameters and optimizer state in this server's sealed parts of checkpoints"},
    CountRow{NodeCount::kStoreWrittenBytes, Shown::kServer, "poseidon_store_written_bytes_total",
             "Pieces of checkpoints that this server's store has accepted, sealed or not"},
};

struct GaugeRow {
  NodeGauge what;
  Shown where;
  bool of_job;  ///< shown while there is one
  const char* name;
  const char* help;
};

constexpr std::array kGauges = {
    GaugeRow{NodeGauge::kRank, Shown::kBoth, true, "poseidon_node_rank",
             "Rank of this worker, or index of this server, in the job"},
    GaugeRow{NodeGauge::kEpoch, Shown::kBoth, true, "poseidon_node_epoch",
             "Epoch that this node works in"},
    GaugeRow{NodeGauge::kIteration, Shown::kWorker, true, "poseidon_worker_iteration",
             "Iterations of the run that this worker has completed"},
    GaugeRow{NodeGauge::kShardParameters, Shown::kServer, true, "poseidon_shard_parameters",
             "Parameters that this server owns"},
    GaugeRow{NodeGauge::kSendQueue, Shown::kBoth, false, "poseidon_send_queue_messages",
             "Chunks and factors that wait to be sent on a stream"},
    GaugeRow{NodeGauge::kStreams, Shown::kServer, false, "poseidon_server_streams",
             "Streams of workers"},
    GaugeRow{NodeGauge::kPausedStreams, Shown::kServer, false, "poseidon_server_paused_streams",
             "Streams that are not read because their workers are too far ahead of others"},
    GaugeRow{NodeGauge::kEarlyGradientBytes, Shown::kServer, false,
             "poseidon_server_early_gradient_bytes",
             "Gradients that wait in memory for those of lower ranks"},
    GaugeRow{NodeGauge::kCheckpointQueue, Shown::kServer, false, "poseidon_snapshot_queue_chunks",
             "Frozen chunks that wait for the disk"},
    GaugeRow{NodeGauge::kStoreSnapshots, Shown::kServer, false, "poseidon_store_snapshots",
             "Sealed parts of checkpoints in this server's store"},
    GaugeRow{NodeGauge::kStoreBytes, Shown::kServer, false, "poseidon_store_bytes",
             "Size of the RocksDB table files of this server's store"},
    GaugeRow{NodeGauge::kStoreFiles, Shown::kServer, false, "poseidon_store_files",
             "RocksDB table files of this server's store"},
    GaugeRow{
        NodeGauge::kStoreMemoryBytes, Shown::kServer, false, "poseidon_store_table_reader_bytes",
        "Memory that RocksDB holds for reading its tables (rocksdb.estimate-table-readers-mem)"},
    GaugeRow{NodeGauge::kStoreErrors, Shown::kServer, false, "poseidon_store_background_errors",
             "Background errors of RocksDB since the store was opened (rocksdb.background-errors)"},
};

void add_counts(const NodeProbe& probe, bool is_server, MetricFamilies& families) {
  for (const CountRow& row : kCounts) {
    if (!shows(row.where, is_server)) continue;
    if (families.empty() || families.back().name != row.name) {
      families.push_back(counter_family(row.name, row.help));
    }
    MetricLabels labels;
    if (row.label != nullptr) labels = {{row.label, row.value}};
    add_value(families.back(), std::move(labels), static_cast<double>(probe.counted(row.what)));
  }
}

void add_gauges(const NodeProbe& probe, bool is_server, bool has_job, MetricFamilies& families) {
  for (const GaugeRow& row : kGauges) {
    if (!shows(row.where, is_server) || (row.of_job && !has_job)) continue;
    families.push_back(
        single_gauge(row.name, row.help, static_cast<double>(probe.value(row.what))));
  }
}

void add_stages(const NodeProbe& probe, bool is_server, MetricFamilies& families) {
  auto stages = histogram_family("poseidon_stage_seconds", "Duration of the parts of an iteration");
  for (int s = 0; s < static_cast<int>(Stage::kCount); ++s) {
    const auto stage = static_cast<Stage>(s);
    if (!(is_server ? is_server_stage(stage) : is_worker_stage(stage))) continue;
    if (is_device_copy(stage)) continue;
    // Few workers lead a group.
    if (!is_server && stage == Stage::kSum && probe.stage(stage).count() == 0) continue;
    add_histogram(stages, {{"stage", stage_name(stage)}}, probe.stage(stage));
  }
  families.push_back(std::move(stages));
}

void add_refusals(const NodeFigures& figures, MetricFamilies& families) {
  auto refused = counter_family("poseidon_refused_messages_total",
                                "Messages that were refused or dropped, by reason");
  for (int r = 1; r < static_cast<int>(DataRefusal::kCount); ++r) {
    const auto reason = static_cast<DataRefusal>(r);
    add_value(refused, {{"reason", data_refusal_name(reason)}, {"role", figures.role}},
              static_cast<double>(figures.refusals->of(reason)));
  }
  families.push_back(std::move(refused));
}

void add_transport(const NodeFigures& figures, MetricFamilies& families) {
  std::uint64_t shared = 0;
  std::uint64_t sent = 0;
  for (const PacedTraffic* traffic : figures.traffic) {
    shared += traffic->shared_bytes;
    sent += traffic->sent_bytes;
  }
  auto family = counter_family("poseidon_transport_sent_bytes_total",
                               "Payload sent to workers and servers, by transport");
  add_value(family, {{"path", "shared_memory"}}, static_cast<double>(shared));
  add_value(family, {{"path", "socket"}}, static_cast<double>(sent));
  families.push_back(std::move(family));
}

void add_disk(const std::filesystem::path& data_dir, MetricFamilies& families) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(data_dir, error);
  if (error) return;
  families.push_back(single_gauge("poseidon_disk_free_bytes",
                                  "Free space of the file system that holds --data-dir",
                                  static_cast<double>(space.available)));
  families.push_back(single_gauge("poseidon_disk_bytes",
                                  "Size of the file system that holds --data-dir",
                                  static_cast<double>(space.capacity)));
}

void add_gpu(const GpuMonitor& monitor, MetricFamilies& families) {
  const GpuFigures figures = monitor.read();
  const auto add = [&](const char* name, const char* help, const std::optional<double>& value) {
    if (value.has_value()) families.push_back(single_gauge(name, help, *value));
  };
  add("poseidon_gpu_memory_used_bytes", "Memory of this worker's GPU in use by all processes",
      figures.memory_used_bytes);
  add("poseidon_gpu_memory_bytes", "Memory of this worker's GPU", figures.memory_total_bytes);
  add("poseidon_gpu_utilization_ratio",
      "Share of the last moment in which this worker's GPU ran a kernel", figures.utilization);
  add("poseidon_gpu_power_watts", "Electrical power that this worker's GPU draws",
      figures.power_watts);
  add("poseidon_gpu_temperature_celsius", "Temperature of this worker's GPU",
      figures.temperature_celsius);
}

void add_layers(const std::string& role, const ShownJob& job, MetricFamilies& families) {
  auto sent = counter_family("poseidon_layer_sent_bytes_total", "Payload sent for the layer");
  auto received =
      counter_family("poseidon_layer_received_bytes_total", "Payload received for the layer");
  auto stall = counter_family("poseidon_layer_stall_seconds_total",
                              "Time that the engine waited for the layer's parameters");
  auto forward = counter_family("poseidon_layer_forward_seconds_total",
                                "Time in the layer's forward passes of training");
  auto backward = counter_family("poseidon_layer_backward_seconds_total",
                                 "Time in the layer's backward passes");
  auto sync =
      histogram_family("poseidon_layer_sync_seconds",
                       "From a layer's gradient being ready to its new parameters being there");
  auto aggregation =
      counter_family("poseidon_layer_aggregation_seconds_total",
                     "Time in which gradients of the layer were summed and its parameters stepped");
  for (std::uint32_t i = 0; i < job.plan->layers.size(); ++i) {
    const LayerIndex layer(i);
    const PlanLayer& plan = job.plan->layers[i];
    const MetricLabels labels = {
        {"layer", plan.name}, {"scheme", std::string(scheme_name(plan.scheme))}, {"role", role}};
    add_value(sent, labels, static_cast<double>(job.traffic->sent_bytes(layer)));
    add_value(received, labels, static_cast<double>(job.traffic->received_bytes(layer)));
    const MetricLabels name = {{"layer", plan.name}};
    add_value(stall, name, job.traffic->stall_seconds(layer));
    add_value(forward, name, job.traffic->forward_seconds(layer));
    add_value(backward, name, job.traffic->backward_seconds(layer));
    add_histogram(sync, labels, job.traffic->sync(layer));
    add_value(aggregation, name, job.traffic->aggregation_seconds(layer));
  }
  families.push_back(std::move(sent));
  families.push_back(std::move(received));
  if (role != "worker") {
    families.push_back(std::move(aggregation));
    return;
  }
  for (auto* family : {&stall, &forward, &backward, &sync}) families.push_back(std::move(*family));
}

void add_input(const DataProbe& data, MetricFamilies& families) {
  auto stall = counter_family("poseidon_data_stall_seconds_total",
                              "Time that the engine waited for the next batch");
  add_value(stall, {}, data.stall_seconds());
  auto corrupt = counter_family("poseidon_data_corrupt_samples_total",
                                "Samples that cannot be read; other samples replace them");
  add_value(corrupt, {}, static_cast<double>(data.corrupt_samples()));
  families.push_back(std::move(stall));
  families.push_back(std::move(corrupt));
  families.push_back(single_gauge("poseidon_data_ready_batches",
                                  "Batches that are read and transformed and wait for the engine",
                                  static_cast<double>(data.ready_batches())));
}

}  // namespace

MetricFamilies node_page(const NodeFigures& figures, const ShownJob& job) {
  const bool is_server = figures.role == "server";
  const bool has_job = job.plan != nullptr;
  MetricFamilies families;
  add_counts(*figures.probe, is_server, families);
  add_gauges(*figures.probe, is_server, has_job, families);
  add_stages(*figures.probe, is_server, families);
  add_refusals(figures, families);
  add_transport(figures, families);
  if (!is_server) {
    auto iterations = histogram_family("poseidon_iteration_seconds",
                                       "This worker's iterations, from one's input to its loss");
    add_histogram(iterations, {}, figures.probe->iterations());
    families.push_back(std::move(iterations));
  }
  if (!figures.data_dir.empty()) add_disk(figures.data_dir, families);
  if (figures.gpu != nullptr) add_gpu(*figures.gpu, families);
  if (!has_job) return families;
  if (!is_server) {
    families.push_back(single_gauge("poseidon_worker_loss",
                                    "Mean loss over this worker's samples of its last iteration",
                                    figures.probe->loss()));
  }
  add_layers(figures.role, job, families);
  if (job.data != nullptr) add_input(*job.data, families);
  return families;
}

absl::StatusOr<std::unique_ptr<NodeMetrics>> NodeMetrics::serve(const std::string& listen,
                                                                NodeFigures figures) {
  std::unique_ptr<NodeMetrics> metrics(new NodeMetrics(std::move(figures)));
  POSEIDON_ASSIGN_OR_RETURN(metrics->server_, MetricsServer::start(
                                                  listen, metrics->figures_.security,
                                                  [raw = metrics.get()] { return raw->page(); },
                                                  metrics->figures_.pulse));
  return metrics;
}

MetricFamilies NodeMetrics::page() const {
  ShownJob job;
  {
    const MutexLock lock(mutex_);
    job = job_;
  }
  MetricFamilies families = node_page(figures_, job);
  add_security_figures(figures_.role, *figures_.security, families);
  add_process_figures(figures_.role, families);
  return families;
}

void NodeMetrics::show(ShownJob job) {
  const MutexLock lock(mutex_);
  job_ = std::move(job);
}

}  // namespace poseidon
