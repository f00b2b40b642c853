#include "server/shard/shard_service.h"

#include <utility>

namespace poseidon {

ShardService::ShardService(Transport* transport, RefusalCounts* refusals, RefusalLog log,
                           std::int64_t pending_limit_bytes, Team* team)
    : transport_(transport),
      pending_limit_bytes_(pending_limit_bytes),
      team_(team),
      streams_(transport, refusals, RelayEnd::kNone, std::move(log),
               [this] { hand_over_frozen(); }) {}

void ShardService::assign(Plan plan, ServerIndex self, OptimizerSpec optimizer,
                          std::shared_ptr<TrafficProbe> traffic, std::function<void()> done) {
  // std::function wants copyable captures; the plan is shared instead of copied.
  auto shared_plan = std::make_shared<Plan>(std::move(plan));
  transport_->post([this, shared_plan, self, optimizer = std::move(optimizer),
                    traffic = std::move(traffic), done = std::move(done)] {
    streams_.close(absl::AbortedError("the server has a new assignment"));
    shard_.emplace(std::move(*shared_plan), self, optimizer, &consistency_, pending_limit_bytes_,
                   team_);
    traffic_ = traffic;
    streams_.open(&*shard_, traffic_.get());
    done();
  });
}

void ShardService::drop(Epoch epoch) {
  transport_->post([this, epoch] {
    if (shard_of(epoch) == nullptr) return;
    streams_.close(absl::AbortedError("the job has ended"));
    shard_.reset();
    traffic_.reset();
  });
}

void ShardService::halt(Epoch epoch, std::function<void(const Shard*)> done) {
  transport_->post([this, epoch, done = std::move(done)] {
    const Shard* shard = shard_of(epoch);
    if (shard != nullptr) streams_.halt();
    done(shard);
  });
}

void ShardService::with_shard(Epoch epoch, std::function<void(Shard*)> function) {
  transport_->post([this, epoch, function = std::move(function)] {
    function(shard_of(epoch));
    hand_over_frozen();
  });
}

void ShardService::hand_over_frozen() {
  if (!shard_ || !shard_->has_frozen()) return;
  for (FrozenChunk& chunk : shard_->take_frozen()) {
    if (frozen_sink_) frozen_sink_(shard_->plan().epoch, std::move(chunk));
  }
}

}  // namespace poseidon
