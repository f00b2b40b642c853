#pragma once

// Where the executor's tensors lie: one block of memory, in which tensors that are never needed at
// the same time share their place. Pure. Before: the network. After: network_executor.h.
//
// Time goes forward through the layers and back: layer i of n runs forward at i, backward at
// 2n - i. An output is needed from its layer's forward until the forward pass is over (for results
// and the search for NaN) and until the last backward that reads it; a gradient from the backward
// that writes it first to its own layer's. Inputs and output gradients of fully connected layers
// stay to the end: they are the factors that other workers get.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/net.h"

namespace poseidon {

inline constexpr std::int64_t kNoPlace = -1;

/// A piece of memory that is needed from `first` to `last`, both included.
struct Lifetime {
  std::int64_t bytes = 0;
  std::int64_t first = 0, last = 0;
};

/// Offsets, aligned to 64 bytes, such that no two lifetimes that overlap share a byte: the largest
/// first, each at the lowest free place ("greedy by size": Pisarchyk, Lee, "Efficient memory
/// management for deep neural net inference", 2020, section 5.2). `total_bytes` gets the end of the
/// last one.
std::vector<std::int64_t> place_lifetimes(std::span<const Lifetime> lifetimes,
                                          std::int64_t* total_bytes);

struct BufferPlan {
  struct Layer {
    bool runs_backward = false;
    std::int64_t elements = 0;       // of the output, whole batch
    std::int64_t output = kNoPlace;  // bytes
    /// After a forward pass the output's place holds it, or it after ReLU or dropout, which keep
    /// what is no finite number; not a sum.
    bool output_stays = true;
    std::int64_t output_gradient = kNoPlace;  // none for losses and what runs no backward
    /// Per input. Where another reader's backward has written the input's gradient before: a place
    /// for this one's share, which is then added.
    std::vector<std::int64_t> addends;
  };
  std::vector<Layer> layers;  ///< as in the network
  std::int64_t bytes = 0;
};

/// RESOURCE_EXHAUSTED for sizes beyond any machine's.
absl::StatusOr<BufferPlan> plan_buffers(const NetSpec& net, std::int64_t batch_size);

}  // namespace poseidon
