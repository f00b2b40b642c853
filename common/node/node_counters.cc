#include "common/node/node_counters.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace poseidon {
namespace {

constexpr std::chrono::seconds kSamplePause{1};

void fill_computed(const TrafficProbe& traffic, v1::NodeCounters& counters) {
  double seconds = 0.0;
  std::uint64_t iterations = 0;
  for (std::uint32_t i = 0; i < traffic.layers(); ++i) {
    const LayerIndex layer(i);
    seconds += traffic.forward_seconds(layer) + traffic.backward_seconds(layer);
    // Every parameter layer is synchronised once in an iteration.
    iterations = std::max<std::uint64_t>(iterations, traffic.sync(layer).count());
  }
  counters.set_compute_seconds(seconds);
  counters.set_compute_iterations(iterations);
}

}  // namespace

DeviceFigures disk_figures(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  DeviceFigures figures;
  if (error) return figures;
  figures.disk_free_bytes = space.available;
  figures.disk_bytes = space.capacity;
  return figures;
}

DeviceSampler::DeviceSampler(std::function<DeviceFigures()> read)
    : read_(std::move(read)), last_(read_()), thread_([this] { loop(); }) {}

DeviceSampler::~DeviceSampler() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

DeviceFigures DeviceSampler::last() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_;
}

void DeviceSampler::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kSamplePause, [this] { return stopping_; })) {
    lock.unlock();
    const DeviceFigures figures = read_();
    lock.lock();
    last_ = figures;
  }
}

void fill_refused_connections(const Security& security,
                              google::protobuf::RepeatedPtrField<v1::RefusedCount>& out) {
  for (std::size_t r = 0; r < kPeerRefusals; ++r) {
    const auto refusal = static_cast<PeerRefusal>(r);
    if (security.refused(refusal) == 0) continue;
    v1::RefusedCount& count = *out.Add();
    count.set_reason(peer_refusal_name(refusal));
    count.set_count(security.refused(refusal));
  }
}

void fill_counters(const NodeProbe& probe, const TrafficProbe* traffic,
                   const CounterSources& sources, v1::NodeCounters& counters) {
  const auto gauge = [&probe](NodeGauge what) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(probe.value(what), 0));
  };
  if (traffic != nullptr) {
    counters.set_epoch(gauge(NodeGauge::kEpoch));
    fill_computed(*traffic, counters);
  }
  counters.set_retries_server(probe.counted(NodeCount::kRetriesServer));
  counters.set_retries_worker(probe.counted(NodeCount::kRetriesWorker));
  counters.set_retries_coordinator(probe.counted(NodeCount::kRetriesCoordinator));
  counters.set_streams(gauge(NodeGauge::kStreams));
  counters.set_paused_streams(gauge(NodeGauge::kPausedStreams));
  counters.set_early_gradient_bytes(gauge(NodeGauge::kEarlyGradientBytes));
  counters.set_store_errors(gauge(NodeGauge::kStoreErrors));
  counters.set_snapshots_failed(probe.counted(NodeCount::kSnapshotsFailed));
  std::uint64_t shared = 0, sent = 0;
  for (const PacedTraffic* of : sources.traffic) {
    shared += of->shared_bytes;
    sent += of->sent_bytes;
  }
  counters.set_shared_memory_bytes(shared);
  counters.set_socket_bytes(sent);
  if (sources.security != nullptr) {
    fill_refused_connections(*sources.security, *counters.mutable_refused_connections());
    if (const auto expiry = sources.security->expires_unix_s()) {
      counters.set_certificate_expiry_unix_s(*expiry);
    }
  }
  if (sources.devices == nullptr) return;
  const DeviceFigures devices = sources.devices->last();
  if (devices.disk_free_bytes) counters.set_disk_free_bytes(*devices.disk_free_bytes);
  if (devices.disk_bytes) counters.set_disk_bytes(*devices.disk_bytes);
  if (devices.gpu_utilization) counters.set_gpu_utilization(*devices.gpu_utilization);
  if (devices.gpu_celsius) counters.set_gpu_celsius(*devices.gpu_celsius);
}

}  // namespace poseidon
