#pragma once

// For tests: a server's part of a toy plan (twelve parameters in three chunks), and the messages of
// its workers.

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "server/shard/shard.h"
#include "tests/support/toy_plan.h"

namespace poseidon {

inline constexpr float kLearningRate = 0.5f;

class ShardTest : public ::testing::Test {
 protected:
  ShardTest() { optimizer_.learning_rate = kLearningRate; }

  Shard make(std::uint32_t workers, std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes) {
    return {testing_support::toy_plan(workers, 1, {6, 2}, 4), ServerIndex(0), optimizer_, &bsp_,
            pending_limit_bytes};
  }
  static std::vector<float> values(const Shard& shard, ChunkId chunk) {
    const FloatBuffer buffer = shard.parameters(chunk);
    return {buffer.floats().begin(), buffer.floats().end()};
  }
  static ChunkDecision send(Shard& shard, ChunkKind kind, std::uint32_t rank, std::uint32_t chunk,
                            Iteration iteration, const std::vector<float>& payload) {
    return shard.on_message(testing_support::message_for(shard.plan(), kind, WorkerRank(rank),
                                                         ChunkId(chunk), iteration, payload));
  }
  static ChunkDecision push(Shard& shard, std::uint32_t rank, std::uint32_t chunk,
                            Iteration iteration, float value) {
    const auto n = static_cast<std::size_t>(shard.plan().chunks[chunk].elements);
    return send(shard, ChunkKind::kPushGradient, rank, chunk, iteration,
                std::vector<float>(n, value));
  }
  static void initialise(Shard& shard) {
    for (std::uint32_t c = 0; c < shard.plan().chunks.size(); ++c) {
      const auto n = static_cast<std::size_t>(shard.plan().chunks[c].elements);
      const auto decision =
          send(shard, ChunkKind::kInitialise, 0, c, 0, std::vector<float>(n, 10.0f));
      ASSERT_FALSE(decision.objection) << decision.objection.message;
    }
  }

  OptimizerSpec optimizer_;
  BspConsistency bsp_;
};

}  // namespace poseidon
