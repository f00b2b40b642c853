#include "worker/sync_client.h"

#include <future>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace poseidon {

SyncClient::SyncClient(Transport* transport, Plan plan, WorkerRank rank,
                       std::vector<LayerMemory> layers, SyncClientOptions options,
                       TrafficProbe* traffic, RefusalCounts* refusals)
    : transport_(transport),
      plan_(std::move(plan)),
      options_(options),
      traffic_(traffic),
      syncer_(std::make_unique<Syncer>(transport, plan_, rank, std::move(layers), options.syncer,
                                       this, traffic, refusals)),
      versions_(plan_.layers.size(), -1),
      exact_(plan_.layers.size(), false) {}

SyncClient::~SyncClient() {
  auto closed = std::make_shared<std::promise<void>>();  // outlives set_value on the loop
  transport_->post([this, closed] {
    syncer_.reset();
    closed->set_value();
  });
  closed->get_future().wait();  // bounded: the loop runs what is posted, and nothing on it blocks
}

void SyncClient::start() {
  transport_->post([this] { syncer_->start(); });
}

void SyncClient::gradient_ready(LayerIndex layer, Iteration iteration) {
  transport_->post([this, layer, iteration] { syncer_->gradient_ready(layer, iteration); });
}

absl::Status SyncClient::wait(LayerIndex layer, Iteration version, bool exact) {
  const auto since = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const auto arrived = [&] {
    return !failure_.ok() ||
           (versions_[layer.value()] >= version && (!exact || exact_[layer.value()]));
  };
  if (arrived()) return failure_;
  const bool in_time = changed_.wait_for(lock, options_.wait_timeout, arrived);
  traffic_->stalled(layer, static_cast<std::uint64_t>(std::chrono::duration_cast<Nanoseconds>(
                                                          std::chrono::steady_clock::now() - since)
                                                          .count()));
  if (in_time) return failure_;
  std::set<std::string> servers;
  for (const PlanChunk& chunk : plan_.chunks) {
    if (chunk.layer == layer) servers.insert(plan_.server_addresses[chunk.server.value()]);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "layer ", plan_.layers[layer.value()].name,
      exact ? ": the exact parameters of version " : ": version ", version, " did not come within ",
      options_.wait_timeout.count(), " ms from its servers ", absl::StrJoin(servers, ", "),
      ": look there, and at the other workers, for one that stands still"));
}

absl::Status SyncClient::wait_parameters(LayerIndex layer, Iteration version) {
  return wait(layer, version, /*exact=*/false);
}

absl::Status SyncClient::fetch_exact_parameters(Iteration version) {
  if (plan_.wire_type == ElementType::kFloat32) return absl::OkStatus();
  transport_->post([this] { syncer_->fetch_exact(); });
  for (std::uint32_t i = 0; i < plan_.layers.size(); ++i) {
    const absl::Status status = wait(LayerIndex(i), version, /*exact=*/true);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SyncClient::wait_all_parameters(Iteration version) {
  for (std::uint32_t i = 0; i < plan_.layers.size(); ++i) {
    if (absl::Status status = wait_parameters(LayerIndex(i), version); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void SyncClient::cancel(const absl::Status& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = reason;
  changed_.notify_all();
}

void SyncClient::parameters_ready(LayerIndex layer, Iteration version) {
  const std::lock_guard lock(mutex_);
  versions_[layer.value()] = version;
  changed_.notify_all();
}

void SyncClient::exact_parameters_ready(LayerIndex layer) {
  const std::lock_guard lock(mutex_);
  exact_[layer.value()] = true;
  changed_.notify_all();
}

}  // namespace poseidon
