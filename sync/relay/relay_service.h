#pragma once

// Runs the relay of a group of workers, in the leader's process, on the transport's loop: between
// the streams of the group and the streams to the servers.
//
// Called by: sync/client/syncer.h of the leader, which begins it. Calls: sync/relay/relay.h, which
// decides; sync/chunks/chunk_service.h, which moves the group's messages; sync/links/chunk_links.h,
// which moves those of the servers.
//
// It lives as long as the process; each job begins and ends it. Everything runs on the loop.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/plan/plan.h"
#include "common/probes/traffic.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/chunks/chunk_service.h"
#include "sync/links/chunk_links.h"
#include "sync/links/sync_events.h"
#include "sync/relay/relay.h"

namespace poseidon {

class RelayService final : public Acceptor, private ChunkEvents {
 public:
  /// `transport`, which speaks kLocalAggregationMethod, and `refusals` must outlive the service,
  /// which is destroyed only once the transport has stopped. `log` is called on the loop.
  /// `pending_limit_bytes`: see sync/chunks/early_budget.h.
  RelayService(Transport* transport, RefusalCounts* refusals, RefusalLog log,
               std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes);

  /// Becomes the relay of the group that `leader` leads in `plan`, and connects to the servers.
  /// `failed` is called when synchronisation with the servers has failed. `servers` and `traffic`
  /// must live until end.
  void begin(Plan plan, WorkerRank leader, Transport* servers, const SyncerOptions& options,
             TrafficProbe* traffic, std::function<void(const absl::Status&)> failed);
  /// Ends the relay, if it belongs to this epoch, and frees its memory.
  void end(Epoch epoch);

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    return streams_.on_accept(std::move(stream));
  }
  /// What the relay lacks of its group, and of the servers; for heartbeats.
  std::vector<AwaitedData> awaited(LayerIndex layer) const;
  /// For observers; null between jobs.
  const Relay* relay() const { return job_ ? &job_->relay : nullptr; }

 private:
  struct Job {
    Job(Plan plan, WorkerRank leader, const SyncerOptions& options,
        std::int64_t pending_limit_bytes)
        : relay(std::move(plan), leader, options.first_iteration, pending_limit_bytes,
                options.team) {}
    Relay relay;
    std::unique_ptr<ChunkLinks> links;
    std::function<void(const absl::Status&)> failed;
  };

  void carry_up();
  void chunk_landed(const ChunkLanded& chunk) override;
  void layer_landed(const LayerLanded& layer) override { chunk_landed(layer); }
  void sync_failed(const absl::Status& status) override { job_->failed(status); }

  RefusalCounts* const refusals_;
  const std::int64_t pending_limit_bytes_;
  std::unique_ptr<Job> job_;  ///< null between jobs
  ChunkService streams_;
};

}  // namespace poseidon
