#pragma once

// The numbers that identify the parts of a job: positions in its plan, epochs and iterations. Each
// is a type of its own.
//
// Called by: every wing. Calls: nothing.

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace poseidon {

/// A number with its own type: the compiler rejects a WorkerRank where a ServerIndex is expected.
template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr StrongId next() const { return StrongId(static_cast<Rep>(value_ + 1)); }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value_; }
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_ = 0;
};

/// Position of a worker in the plan, 0-based; contributions are combined in this order.
using WorkerRank = StrongId<struct WorkerRankTag, std::uint32_t>;
/// Position of a server in the plan, 0-based.
using ServerIndex = StrongId<struct ServerIndexTag, std::uint32_t>;
/// Position of a parameter layer in the plan, in forward order, 0-based.
using LayerIndex = StrongId<struct LayerIndexTag, std::uint32_t>;
/// Position of a chunk in the plan, 0-based, over all layers.
using ChunkId = StrongId<struct ChunkIdTag, std::uint32_t>;
/// Grows with every membership change or rollback; a message of another epoch is refused.
using Epoch = StrongId<struct EpochTag, std::uint64_t>;

/// 0-based number of a mini-batch; as a parameter version: how many optimizer steps are in it.
using Iteration = std::int64_t;

/// Every process of a cluster must have the same version. It grows with every incompatible change
/// of proto/.
inline constexpr std::uint32_t kProtocolVersion = 4;

}  // namespace poseidon

template <typename Tag, typename Rep>
struct std::hash<poseidon::StrongId<Tag, Rep>> {
  std::size_t operator()(poseidon::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
