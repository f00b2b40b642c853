#include "common/node/node_report.h"

#include "common/base/process_load.h"

namespace poseidon {
namespace {

v1::AwaitedData awaited_message(const AwaitedData& awaited) {
  v1::AwaitedData message;
  message.set_layer(awaited.layer.value());
  if (awaited.chunk) message.set_chunk(1 + awaited.chunk->value());
  message.set_iteration(static_cast<std::uint64_t>(awaited.iteration));
  for (const WorkerRank rank : awaited.ranks) message.add_ranks(rank.value());
  if (awaited.server) message.set_server(1 + awaited.server->value());
  return message;
}

}  // namespace

void fill_heartbeat_totals(const TrafficProbe* traffic, const DataProbe* data,
                           const RefusalCounts& refusals, v1::Heartbeat& heartbeat) {
  if (data != nullptr) {
    heartbeat.set_data_stall_seconds(data->stall_seconds());
    heartbeat.set_corrupt_samples(data->corrupt_samples());
  }
  if (traffic != nullptr) heartbeat.set_batches(traffic->batches());
  for (std::uint32_t i = 0; traffic != nullptr && i < traffic->layers(); ++i) {
    v1::LayerTraffic& layer = *heartbeat.add_layers();
    layer.set_layer(i);
    layer.set_sent_bytes(traffic->sent_bytes(LayerIndex(i)));
    layer.set_received_bytes(traffic->received_bytes(LayerIndex(i)));
    layer.set_stall_seconds(traffic->stall_seconds(LayerIndex(i)));
    layer.set_forward_seconds(traffic->forward_seconds(LayerIndex(i)));
    layer.set_backward_seconds(traffic->backward_seconds(LayerIndex(i)));
    layer.set_passes(traffic->passes(LayerIndex(i)));
    layer.set_sync_seconds(traffic->sync(LayerIndex(i)).seconds());
    layer.set_syncs(traffic->sync(LayerIndex(i)).count());
  }
  if (traffic != nullptr) {
    for (const AwaitedData& awaited : traffic->awaited().get()) {
      if (heartbeat.awaited_size() == kMostAwaitedInHeartbeat) break;
      *heartbeat.add_awaited() = awaited_message(awaited);
    }
  }
  for (int r = 1; r < static_cast<int>(DataRefusal::kCount); ++r) {
    const auto reason = static_cast<DataRefusal>(r);
    if (refusals.of(reason) == 0) continue;
    v1::RefusedCount& count = *heartbeat.add_refused();
    count.set_reason(data_refusal_name(reason));
    count.set_count(refusals.of(reason));
  }
}

void fill_load(const NodeProbe& probe, v1::NodeLoad& load) {
  const ProcessLoad process = process_load();
  load.set_machine(process.machine);
  load.set_cores(process.cores);
  load.set_cpu_seconds(process.cpu_seconds);
  load.set_cpu_wait_seconds(process.cpu_wait_seconds);
  load.set_disk_seconds(probe.stage(Stage::kWrite).seconds());
  load.set_disk_bytes(probe.counted(NodeCount::kStoreWrittenBytes));
  load.set_disk_waiting(static_cast<std::uint64_t>(probe.value(NodeGauge::kCheckpointQueue)));
}

}  // namespace poseidon
