#pragma once

// Small plans and messages for tests of the data path.

#include <cstring>
#include <string>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "common/plan/plan.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"

namespace poseidon::testing_support {

/// Layers of the given element counts in chunks of `chunk_elements`, dealt to servers in turn.
inline Plan toy_plan(std::uint32_t workers, std::uint32_t servers,
                     const std::vector<std::int64_t>& layer_elements, std::int64_t chunk_elements) {
  Plan plan;
  plan.epoch = Epoch(5);
  plan.batch_size = 1;
  plan.worker_addresses.assign(workers, "");
  for (std::uint32_t i = 0; i < servers; ++i) {
    plan.server_addresses.push_back("server" + std::to_string(i));
  }
  for (std::uint32_t l = 0; l < layer_elements.size(); ++l) {
    PlanLayer layer;
    layer.name = "layer" + std::to_string(l);
    layer.type = "fully_connected";
    layer.shape = {layer_elements[l]};
    layer.parameters = layer_elements[l];
    plan.layers.push_back(layer);
    for (std::int64_t at = 0; at < layer_elements[l]; at += chunk_elements) {
      plan.chunks.push_back(
          {.layer = LayerIndex(l),
           .offset = at,
           .elements = std::min(chunk_elements, layer_elements[l] - at),
           .server = ServerIndex(static_cast<std::uint32_t>(plan.chunks.size()) % servers)});
    }
  }
  return plan;
}

/// Turns a layer of M*N or M*N + M elements into one that goes by SFB: it has no chunks any more.
inline void send_by_factors(Plan& plan, LayerIndex layer, std::int64_t outputs,
                            std::int64_t inputs) {
  plan.layers[layer.value()].scheme = Scheme::kSfb;
  plan.layers[layer.value()].shape = {outputs, inputs};
  std::erase_if(plan.chunks, [layer](const PlanChunk& chunk) { return chunk.layer == layer; });
}

/// A decoded message as it would arrive, its payload in memory of its own.
inline DecodedChunk message_for(const Plan& plan, ChunkKind kind, WorkerRank rank, ChunkId chunk,
                                Iteration iteration, const std::vector<float>& payload) {
  DecodedChunk message;
  message.header.kind = kind;
  message.header.epoch = plan.epoch;
  message.header.iteration = iteration;
  message.header.rank = rank;
  message.header.chunk = chunk;
  message.header.offset = plan.chunks[chunk.value()].offset;
  const bool rounds = kind == ChunkKind::kPushGradient || kind == ChunkKind::kParameters;
  message.header.element_type = payload.empty() ? ElementType::kNone
                                : rounds        ? plan.wire_type
                                                : ElementType::kFloat32;
  auto memory = std::make_shared<std::vector<std::byte>>(
      payload.size() * element_bytes(message.header.element_type));
  if (!payload.empty()) encode_payload(message.header.element_type, payload, *memory);
  message.payload.pieces = {absl::Span<const std::byte>(*memory)};
  message.payload.owner = std::move(memory);
  return message;
}

}  // namespace poseidon::testing_support
