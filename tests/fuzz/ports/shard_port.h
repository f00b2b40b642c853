#pragma once

// A server's port for workers.

#include <array>
#include <deque>
#include <memory>
#include <utility>

#include "common/base/check.h"
#include "server/shard/shard_service.h"
#include "tests/fuzz/ports/port.h"
#include "tests/support/toy_plan.h"

namespace poseidon::fuzz {

/// Of early gradients.
inline constexpr std::int64_t kPendingLimitBytes = 64;

class ShardPort final : public Port {
 public:
  ShardPort(Transport* transport, std::uint8_t job)
      : service_(transport, &refusals_, {}, kPendingLimitBytes) {
    POSEIDON_CHECK(transport->listen("victim", &service_).ok(), "a free address");
    service_.set_frozen_sink([this](Epoch, FrozenChunk chunk) {
      frozen_.push_back(std::move(chunk));
      if (frozen_.size() > 4) frozen_.pop_front();
    });
    plan_ = testing_support::toy_plan(kWorkers, 1, {10, 12, 7}, kChunkElements);
    plan_.wire_type =
        std::array{ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}[job % 3];
    if (job / 4 % 2 == 1) optimizer_.type = OptimizerType::kAdam;
    if (job / 8 % 2 == 1) optimizer_.clip_norm = 1.0;
    plan_.norm_scope = norm_scope(optimizer_);
    assign();
  }

  Words believable(Input& input) override { return believable_chunk(input, plan_); }

  void act(std::uint8_t how) override {
    switch (how % 5) {
      case 0:
        plan_.epoch = Epoch(plan_.epoch.value() + 1);
        assign();
        break;
      case 1:
        service_.drop(plan_.epoch);
        break;
      case 2:
        service_.halt(plan_.epoch, [](const Shard*) {});
        break;
      case 3:
        service_.with_shard(plan_.epoch, [how](Shard* shard) {
          if (shard != nullptr) (void)shard->freeze_at(how / 8);
        });
        break;
      default:
        service_.with_shard(plan_.epoch, [how](Shard* shard) {
          if (shard != nullptr) (void)shard->freeze_held(how / 8);
        });
        break;
    }
  }

  void check() const override {
    const Shard* shard = service_.shard();
    if (shard == nullptr) return;
    POSEIDON_CHECK(shard->pending_bytes() <= early_bytes_within(kPendingLimitBytes),
                   "early gradients are bounded");
    const HeldRange held = shard->held();
    for (const ChunkId chunk : shard->owned_chunks()) {
      const Iteration version = shard->version(chunk);
      POSEIDON_CHECK(version >= -1 && version <= held.oldest + 1, "all within one step");
    }
  }

 private:
  void assign() {
    service_.assign(plan_, ServerIndex(0), optimizer_,
                    std::make_shared<TrafficProbe>(plan_.layers.size()), [] {});
  }

  RefusalCounts refusals_;
  Plan plan_;
  OptimizerSpec optimizer_;
  std::deque<FrozenChunk> frozen_;
  ShardService service_;
};

}  // namespace poseidon::fuzz
