#include "coordinator/cluster/watch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/log_limit.h"
#include "common/base/text.h"
#include "coordinator/records/metrics_line.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// How often the times of the layers are held against the plan's: once per window of them.
constexpr Nanoseconds kLayerTimesInterval = TrafficMonitor::kWindow;

/// The operator has to bring a lost node back, though the job may continue without it.
spdlog::level::level_enum log_level(EventKind kind) {
  switch (kind) {
    case EventKind::kAlarm:
      return spdlog::level::err;
    case EventKind::kLoss:
    case EventKind::kRecovery:
      return spdlog::level::warn;
    case EventKind::kJoin:
    case EventKind::kLeave:
    case EventKind::kJob:
    case EventKind::kCheckpoint:
      break;
  }
  return spdlog::level::info;
}

/// Seconds since the job began: finite, and no more than a lifetime.
bool sensible(double seconds) { return seconds >= 0.0 && seconds <= 1e10; }
bool sensible(const v1::LayerTraffic& layer) {
  return sensible(layer.stall_seconds()) && sensible(layer.forward_seconds()) &&
         sensible(layer.backward_seconds()) && sensible(layer.sync_seconds());
}

}  // namespace

std::vector<AwaitedData> awaited_from(const v1::Heartbeat& heartbeat) {
  constexpr std::size_t kMostRanks = 64;
  std::vector<AwaitedData> awaited;
  for (const v1::AwaitedData& message : heartbeat.awaited()) {
    if (awaited.size() == kMostAwaitedInHeartbeat) break;
    AwaitedData& data = awaited.emplace_back();
    data.layer = LayerIndex(message.layer());
    if (message.chunk() > 0) data.chunk = ChunkId(message.chunk() - 1);
    if (message.server() > 0) data.server = ServerIndex(message.server() - 1);
    data.iteration = static_cast<Iteration>(std::min<std::uint64_t>(message.iteration(), 1u << 30));
    for (const std::uint32_t rank : message.ranks()) {
      if (data.ranks.size() < kMostRanks) data.ranks.emplace_back(rank);
    }
  }
  return awaited;
}

void Watch::note(EventKind kind, const std::string& text) {
  const std::string line = one_line(text);
  spdlog::log(log_level(kind), "{}", line);
  events_.add(kind, line, context_.clock->unix_time().count());
}

void Watch::refuse(Refusal refusal, const std::string& text) {
  const std::uint64_t n = refusals_.add_own(refusal_name(refusal));
  const bool is_shown = !is_harmless(refusal) && is_logged_refusal(n);
  spdlog::log(is_shown ? spdlog::level::warn : spdlog::level::debug,
              "refused a message ({}, number {}): {}", refusal_name(refusal), n, one_line(text));
}

void Watch::on_departure(const NodeInfo& node, DepartureKind kind) {
  ++counts_.departures[node.role][static_cast<std::size_t>(kind)];
  if (traffic_) traffic_->remove(node.id);
  loads_.remove(node.id);
  counters_.remove(node.id);
  refusals_.on_departure(node.id);
}

void Watch::take_refusals(NodeId from, const v1::Heartbeat& heartbeat) {
  refusals_.report(from, heartbeat);
}

bool Watch::take_load(NodeId from, const v1::NodeLoad& load) {
  const auto is_valid = [](double seconds) { return seconds >= 0.0 && std::isfinite(seconds); };
  if (!is_valid(load.cpu_seconds()) || !is_valid(load.cpu_wait_seconds()) ||
      !is_valid(load.disk_seconds())) {
    return false;
  }
  loads_.add(from,
             {.machine = load.machine(),
              .cores = load.cores(),
              .cpu_seconds = load.cpu_seconds(),
              .cpu_wait_seconds = load.cpu_wait_seconds(),
              .disk_seconds = load.disk_seconds(),
              .disk_bytes = load.disk_bytes(),
              .disk_waiting = load.disk_waiting()},
             context_.now());
  return true;
}

std::string Watch::take_traffic(NodeId from, const v1::Heartbeat& heartbeat) {
  if (!sensible(heartbeat.data_stall_seconds())) {
    return absl::StrCat("a wait for samples of ", heartbeat.data_stall_seconds(), " s");
  }
  std::vector<LayerTotals> layers(traffic_->layers());
  for (const v1::LayerTraffic& layer : heartbeat.layers()) {
    if (layer.layer() >= layers.size() || !sensible(layer)) {
      return absl::StrCat("traffic of layer ", layer.layer(), " of ", layers.size());
    }
    layers[layer.layer()] = {.sent_bytes = layer.sent_bytes(),
                             .received_bytes = layer.received_bytes(),
                             .stall_seconds = layer.stall_seconds(),
                             .forward_seconds = layer.forward_seconds(),
                             .backward_seconds = layer.backward_seconds(),
                             .passes = layer.passes(),
                             .sync_seconds = layer.sync_seconds(),
                             .syncs = layer.syncs()};
  }
  traffic_->add(from,
                {.layers = std::move(layers),
                 .data_stall_seconds = heartbeat.data_stall_seconds(),
                 .corrupt_samples = heartbeat.corrupt_samples()},
                context_.now());
  return "";
}

void Watch::begin_job(LossCurve curve, Iteration first) {
  curve_ = std::move(curve);
  counted_iterations_ = first;
  traffic_.reset();
}

void Watch::count_end(bool done, bool was_stopped) {
  if (done) {
    ++counts_.jobs_done;
  } else {
    ++(was_stopped ? counts_.jobs_stopped : counts_.jobs_failed);
  }
}

void Watch::begin_traffic(std::size_t layers) {
  traffic_ = std::make_unique<TrafficMonitor>(layers);
}

void Watch::count_iterations(Iteration completed) {
  if (completed > counted_iterations_) {
    counts_.iterations += static_cast<std::uint64_t>(completed - counted_iterations_);
  }
  counted_iterations_ = completed;  // less than before where some are made again
}

void Watch::add_line(const std::string& line) {
  if (const auto parsed = parse_metrics_line(line)) curve_.add(*parsed);
}

WorkerRates Watch::worker_rates(NodeId node, Nanoseconds until) const {
  return traffic_ ? traffic_->worker_rates(node, until) : WorkerRates{};
}

LayerRates Watch::layer_rates(LayerIndex layer, Nanoseconds until) const {
  return traffic_ ? traffic_->rates(layer, until) : LayerRates{};
}

std::vector<MeasuredLayer> Watch::due_layer_times(Nanoseconds now) {
  if (!traffic_ || now - layer_times_at_ < kLayerTimesInterval) return {};
  layer_times_at_ = now;
  return traffic_->slowest();
}

std::string sender_text(const Membership& membership, NodeId from) {
  const NodeInfo* node = membership.find(from);
  return absl::StrCat(node == nullptr ? "" : absl::StrCat(node_text(*node), ", "), "node ",
                      from.value());
}

}  // namespace poseidon
