#include "sync/relay/relay_service.h"

#include <utility>

namespace poseidon {

RelayService::RelayService(Transport* transport, RefusalCounts* refusals, RefusalLog log,
                           std::int64_t pending_limit_bytes)
    : refusals_(refusals),
      pending_limit_bytes_(pending_limit_bytes),
      streams_(transport, refusals, RelayEnd::kRelay, std::move(log), [this] { carry_up(); }) {}

void RelayService::begin(Plan plan, WorkerRank leader, Transport* servers,
                         const SyncerOptions& options, TrafficProbe* traffic,
                         std::function<void(const absl::Status&)> failed) {
  streams_.close(absl::AbortedError("the relay has a new assignment"));
  job_ = std::make_unique<Job>(plan, leader, options, pending_limit_bytes_);
  job_->failed = std::move(failed);
  PsRoute route(std::move(plan), leader, job_->relay.layers(), options.first_iteration,
                options.team);
  ChunkEvents* const events = this;
  job_->links =
      std::make_unique<ChunkLinks>(servers, std::move(route), ChunkLinks::Towards::kServers,
                                   options, events, traffic, refusals_);
  streams_.open(&job_->relay, traffic);
  // Worker 0's initial parameters come as a message, like all gradients.
  const bool is_given_them = leader == WorkerRank(0) && options.first_iteration == 0;
  job_->links->start(is_given_them ? ChunkLinks::FirstParameters::kRequested
                                   : ChunkLinks::FirstParameters::kFetched);
}

void RelayService::end(Epoch epoch) {
  if (job_ == nullptr || job_->relay.plan().epoch != epoch) return;
  streams_.close(absl::AbortedError("the job has ended"));
  job_.reset();
}

/// What messages led to.
void RelayService::carry_up() { job_->links->request(job_->relay.take_requests()); }

void RelayService::chunk_landed(const ChunkLanded& chunk) {
  for (const Delivery& delivery : job_->relay.landed(chunk.chunk, chunk.version, chunk.exact)) {
    streams_.deliver(delivery);
  }
  carry_up();
}

std::vector<AwaitedData> RelayService::awaited(LayerIndex layer) const {
  if (job_ == nullptr) return {};
  std::vector<AwaitedData> awaited = job_->relay.awaited(layer);
  if (awaited.empty()) awaited = job_->links->awaited(layer);
  return awaited;
}

}  // namespace poseidon
