#include "common/plan/plan_pin.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"
#include "common/plan/chunking.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxServers = 65536;
constexpr std::int64_t kMaxPinnedWorkers = 65536;
constexpr std::size_t kMaxPinnedLayers = 65536;
constexpr std::size_t kMaxPinnedChunks = 1 << 20;
constexpr std::size_t kMaxDimensions = 16;
/// As large as sync.chunk_bytes may be: receivers have no room for more.
constexpr std::int64_t kMaxPinnedChunkBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMaxChunkElements = kMaxPinnedChunkBytes / kElementBytes;
constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxIndex = std::numeric_limits<std::uint32_t>::max();

absl::StatusOr<PinnedLayer> read_layer(const Json& json, std::string_view source,
                                       const std::string& path) {
  JsonFields fields(json, source, path);
  PinnedLayer layer;
  std::string scheme = "ps";
  for (const char* key : {"name", "shape", "parameters", "scheme"}) fields.require(key);
  fields.string("name", &layer.name);
  fields.integers("shape", &layer.shape, 1, kAny, 1, kMaxDimensions);
  fields.integer("parameters", &layer.parameters, 1, kAny);
  fields.one_of("scheme", &scheme, {"ps", "sfb"});
  layer.scheme = scheme == "sfb" ? Scheme::kSfb : Scheme::kPs;
  POSEIDON_RETURN_IF_ERROR(fields.status());
  return layer;
}

absl::StatusOr<PlanChunk> read_chunk(const Json& json, std::string_view source,
                                     const std::string& path) {
  JsonFields fields(json, source, path);
  std::int64_t layer = 0, server = 0;
  PlanChunk chunk;
  for (const char* key : {"layer", "offset", "elements", "server"}) fields.require(key);
  fields.integer("layer", &layer, 0, kMaxIndex);
  fields.integer("offset", &chunk.offset, 0, kAny);
  fields.integer("elements", &chunk.elements, 1, kMaxChunkElements);
  fields.integer("server", &server, 0, kMaxServers - 1);
  POSEIDON_RETURN_IF_ERROR(fields.status());
  chunk.layer = LayerIndex(static_cast<std::uint32_t>(layer));
  chunk.server = ServerIndex(static_cast<std::uint32_t>(server));
  return chunk;
}

/// "local_groups": [[0, 1], [2, 3]]: every rank in one of them, the lowest leads.
void read_groups(const Json& groups, JsonFields& fields, std::vector<WorkerRank>& leaders) {
  std::map<std::int64_t, std::int64_t> leader_of;
  const auto refuse = [&fields] {
    fields.refuse("local_groups",
                  "expected lists of worker ranks, which together have each rank from 0 on once");
  };
  for (const Json& group : groups) {
    if (!group.is_array() || group.empty()) return refuse();
    std::vector<std::int64_t> ranks;
    for (const Json& rank : group) {
      if (!rank.is_number_integer() || rank < 0 || rank >= kMaxPinnedWorkers) return refuse();
      ranks.push_back(rank.get<std::int64_t>());
    }
    const std::int64_t leader = *std::ranges::min_element(ranks);
    for (const std::int64_t rank : ranks) {
      if (!leader_of.emplace(rank, leader).second) return refuse();
    }
  }
  if (!leader_of.empty() && leader_of.rbegin()->first + 1 != std::ssize(leader_of)) return refuse();
  for (const auto& [rank, leader] : leader_of) {
    leaders.emplace_back(static_cast<std::uint32_t>(leader));
  }
}

}  // namespace

PlanPin pin_of(const Plan& plan) {
  PlanPin pin{.workers = plan.workers(),
              .servers = plan.servers(),
              .layers = {},
              .chunks = plan.chunks,
              .chunk_bytes = plan.chunk_bytes,
              .window_bytes = plan.window_bytes,
              .leaders = plan.leaders};
  for (const PlanLayer& layer : plan.layers) {
    pin.layers.push_back({.name = layer.name,
                          .shape = layer.shape,
                          .parameters = layer.parameters,
                          .scheme = layer.scheme});
  }
  return pin;
}

absl::StatusOr<PlanPin> plan_pin_from_json(const nlohmann::json& json, std::string_view source) {
  JsonFields fields(json, source, "");
  PlanPin pin;
  std::int64_t servers = 0, workers = 0;
  fields.integer("workers", &workers, 0, kMaxPinnedWorkers);
  fields.require("servers");
  fields.require("layers");
  fields.integer("servers", &servers, 1, kMaxServers);
  fields.integer("chunk_bytes", &pin.chunk_bytes, 0, kMaxPinnedChunkBytes);
  if (pin.chunk_bytes > 0 && pin.chunk_bytes < kElementBytes) {
    fields.refuse("chunk_bytes",
                  "expected 0 (not known) or as much as an element has, 4, at least");
  }
  fields.integer("window_bytes", &pin.window_bytes, 0, kMaxWorkerWindowBytes);
  if (pin.window_bytes > 0 && pin.window_bytes < kMinWorkerWindowBytes) {
    fields.refuse("window_bytes",
                  str_cat("expected 0 (not known) or at least ", kMinWorkerWindowBytes));
  }
  const Json* layers = fields.array("layers", "layers", 1, kMaxPinnedLayers);
  const Json* chunks = fields.array("chunks", "chunks", 0, kMaxPinnedChunks);
  const Json* groups =
      fields.array("local_groups", "groups", 0, static_cast<std::size_t>(kMaxPinnedWorkers));
  if (groups != nullptr) read_groups(*groups, fields, pin.leaders);
  POSEIDON_RETURN_IF_ERROR(fields.status());
  pin.workers = static_cast<std::uint32_t>(workers);
  pin.servers = static_cast<std::uint32_t>(servers);
  for (const Json& layer : *layers) {
    POSEIDON_ASSIGN_OR_RETURN(
        PinnedLayer read, read_layer(layer, source, str_cat("layers[", pin.layers.size(), "]")));
    pin.layers.push_back(std::move(read));
  }
  if (chunks == nullptr) return pin;
  for (const Json& chunk : *chunks) {
    POSEIDON_ASSIGN_OR_RETURN(
        const PlanChunk read,
        read_chunk(chunk, source, str_cat("chunks[", pin.chunks.size(), "]")));
    pin.chunks.push_back(read);
  }
  return pin;
}

nlohmann::json plan_pin_to_json(const PlanPin& pin) {
  Json json = {{"workers", pin.workers},
               {"servers", pin.servers},
               {"chunk_bytes", pin.chunk_bytes},
               {"window_bytes", pin.window_bytes},
               {"local_groups", local_groups(pin.leaders)},
               {"layers", Json::array()},
               {"chunks", Json::array()}};
  for (const PinnedLayer& layer : pin.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"shape", layer.shape},
                              {"parameters", layer.parameters},
                              {"scheme", scheme_name(layer.scheme)}});
  }
  for (const PlanChunk& chunk : pin.chunks) {
    json["chunks"].push_back({{"layer", chunk.layer.value()},
                              {"offset", chunk.offset},
                              {"elements", chunk.elements},
                              {"server", chunk.server.value()}});
  }
  return json;
}

}  // namespace poseidon
