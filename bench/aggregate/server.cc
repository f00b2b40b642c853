#include "bench/aggregate/server.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/median.h"
#include "common/base/process_load.h"
#include "common/plan/plan.h"
#include "common/threads/thread_team.h"
#include "common/wire/wire.h"
#include "server/shard/shard.h"

namespace poseidon::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::array<std::size_t, 6> kChunkSizes = {64u << 10,  128u << 10, 256u << 10,
                                                    512u << 10, 1u << 20,   2u << 20};

double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

/// One layer, all of whose chunks are this server's.
Plan one_layer(std::size_t workers, std::int64_t elements, std::int64_t chunk_elements,
               ElementType wire_type) {
  Plan plan;
  plan.epoch = Epoch(1);
  plan.batch_size = 1;
  plan.wire_type = wire_type;
  plan.worker_addresses.assign(workers, "");
  plan.server_addresses = {""};
  PlanLayer layer;
  layer.name = "layer";
  layer.type = "fully_connected";
  layer.shape = {elements};
  layer.parameters = elements;
  plan.layers.push_back(std::move(layer));
  for (std::int64_t at = 0; at < elements; at += chunk_elements) {
    plan.chunks.push_back({.layer = LayerIndex(0),
                           .offset = at,
                           .elements = chunk_elements,
                           .server = ServerIndex(0)});
  }
  return plan;
}

/// A server with momentum, and workers whose gradients are as large as its parameters.
class Server {
 public:
  Server(std::size_t mib, std::size_t chunk_bytes, std::size_t workers, ElementType wire_type,
         Team* team)
      : chunk_elements_(chunk_bytes / sizeof(float)),
        bytes_(mib << 20),
        workers_(workers),
        shard_(one_layer(workers, static_cast<std::int64_t>(bytes_ / sizeof(float)),
                         static_cast<std::int64_t>(chunk_elements_), wire_type),
               ServerIndex(0), momentum(), &bsp_, kDefaultPendingLimitBytes, team),
        gradients_(bytes_ / sizeof(float) * element_bytes(wire_type)) {
    const std::vector<float> values(chunk_elements_, 1e-3f);
    const std::size_t width = chunk_elements_ * element_bytes(wire_type);
    for (std::size_t at = 0; at < gradients_.size(); at += width) {
      encode_payload(wire_type, values, std::span(gradients_).subspan(at, width));
    }
    const Bytes initial{.pieces = {as_payload(values)}, .owner = nullptr};
    for (const ChunkId chunk : shard_.owned_chunks()) {
      give({.header = header(ChunkKind::kInitialise, 0, chunk, ElementType::kFloat32),
            .payload = initial});
    }
  }

  /// One iteration with float32 gradients of this size.
  double run() {
    for (const ChunkId chunk : shard_.owned_chunks()) {
      const std::size_t width = chunk_elements_ * element_bytes(shard_.plan().wire_type);
      const absl::Span<const std::byte> all(gradients_);
      const Bytes gradient{.pieces = {all.subspan(chunk.value() * width, width)}, .owner = nullptr};
      for (std::uint32_t rank = 0; rank < workers_; ++rank) {
        give({.header = header(ChunkKind::kPushGradient, rank, chunk, shard_.plan().wire_type),
              .payload = gradient});
      }
    }
    ++iteration_;
    return static_cast<double>(bytes_ * workers_);
  }

 private:
  static OptimizerSpec momentum() {
    OptimizerSpec spec;
    spec.learning_rate = 1e-3;
    spec.momentum = 0.9;
    spec.weight_decay = 5e-4;
    return spec;
  }
  ChunkHeader header(ChunkKind kind, std::uint32_t rank, ChunkId chunk, ElementType type) const {
    return {.kind = kind,
            .epoch = shard_.plan().epoch,
            .iteration = iteration_,
            .rank = WorkerRank(rank),
            .chunk = chunk,
            .offset = shard_.plan().chunks[chunk.value()].offset,
            .element_type = type};
  }
  void give(const DecodedChunk& message) {
    const ChunkDecision decision = shard_.on_message(message);
    POSEIDON_CHECK(!decision.objection, decision.objection.message.c_str());
  }

  const std::size_t chunk_elements_;
  const std::size_t bytes_;
  const std::size_t workers_;
  const BspConsistency bsp_;
  Shard shard_;
  std::vector<std::byte> gradients_;
  Iteration iteration_ = 0;
};

/// One server on the team of each turn.
class TeamInTurns final : public Team {
 public:
  void set(Team* team) { team_ = team; }
  void for_ranges(std::size_t elements, Body body) override { team_->for_ranges(elements, body); }

 private:
  Team* team_ = sequential_team();
};

}  // namespace

std::vector<ServerRow> measure_server(const ServerOptions& options) {
  std::vector<ServerRow> rows;
  ThreadTeam alone(1), together(options.threads);
  const std::array<std::pair<int, Team*>, 2> teams = {{{1, &alone}, {options.threads, &together}}};
  for (const ElementType wire : {ElementType::kFloat32, ElementType::kBfloat16}) {
    for (const std::size_t workers : {std::size_t{1}, std::size_t{2}}) {
      for (const std::size_t chunk_bytes : kChunkSizes) {
        TeamInTurns turns;
        Server server(options.mib, chunk_bytes, workers, wire, &turns);
        for (int warm = 0; warm < 3; ++warm) server.run();  // all versions' memory has been touched
        std::array<std::vector<double>, teams.size()> speed, cost;
        std::vector<double> ratio;
        for (std::size_t round = 0; round < options.rounds; ++round) {
          for (std::size_t i = 0; i < teams.size(); ++i) {
            turns.set(teams[i].second);
            const double cpu = process_cpu_seconds();
            const SteadyClock::time_point begin = SteadyClock::now();
            const double bytes = server.run();
            speed[i].push_back(bytes / seconds_since(begin));
            cost[i].push_back((process_cpu_seconds() - cpu) / bytes * 1e9);
          }
          ratio.push_back(speed[1].back() / speed[0].back());
        }
        for (std::size_t i = 0; i < teams.size(); ++i) {
          rows.push_back({.wire = std::string(wire_dtype_name(wire)),
                          .workers = workers,
                          .chunk_bytes = chunk_bytes,
                          .threads = teams[i].first,
                          .bytes_per_s = median(speed[i]),
                          .cpu_s_per_gb = median(cost[i]),
                          .to_one_thread = i == 0 ? 1.0 : median(ratio)});
        }
      }
    }
  }
  return rows;
}

std::vector<SplitRow> measure_split(const ServerOptions& options) {
  constexpr int kCalls = 1000, kCallsAfterSleep = 20;
  std::vector<SplitRow> rows;
  ThreadTeam team(options.threads);
  const auto nothing = [](std::size_t, std::size_t) {};
  for (const std::size_t chunk_bytes : kChunkSizes) {
    const std::size_t elements = chunk_bytes / sizeof(float);
    std::vector<double> awake, asleep;
    for (std::size_t round = 0; round < options.rounds; ++round) {
      const SteadyClock::time_point begin = SteadyClock::now();
      for (int call = 0; call < kCalls; ++call) team.for_ranges(elements, nothing);
      awake.push_back(seconds_since(begin) / kCalls);
      double sum = 0.0;
      for (int call = 0; call < kCallsAfterSleep; ++call) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const SteadyClock::time_point woken = SteadyClock::now();
        team.for_ranges(elements, nothing);
        sum += seconds_since(woken);
      }
      asleep.push_back(sum / kCallsAfterSleep);
    }
    rows.push_back({.chunk_bytes = chunk_bytes,
                    .awake_us = median(awake) * 1e6,
                    .asleep_us = median(asleep) * 1e6});
  }
  return rows;
}

}  // namespace poseidon::bench
