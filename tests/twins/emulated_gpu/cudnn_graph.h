#pragma once

// Descriptors of the emulated cuDNN, and the operation that a graph of them describes.

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "tests/twins/emulated_gpu/convolution.h"

namespace poseidon::emulated {

/// A graph as far as there is one here. Tensors by the numbers that the caller gave them.
struct Problem {
  Convolution sizes{};
  Pass pass = Pass::kForward;
  std::int64_t x = 0, w = 0, y = 0, bias = 0;
  bool has_bias = false, has_relu = false;

  bool is_float() const { return sizes.type == CUDNN_DATA_FLOAT; }
};

enum class Kind { kCannot, kOtherBits, kSumsIn16Bits, kTransforms, kRefuses, kAll };
struct Engine {
  std::int64_t number;
  Kind kind;
  bool has_tensor_cores;
};
/// Which attributes there are, of what, and of which type.
struct Rule {
  cudnnBackendDescriptorType_t of;
  cudnnBackendAttributeType_t type;
  std::size_t bytes;  ///< of an element
  bool is_needed;
};
/// By their names.
const std::map<int, Rule>& rules();

/// What a graph is made from is copied when it is finalized; a plan reads its configuration when it
/// runs.
struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool is_final = false;
  std::map<int, std::vector<std::byte>> attributes;
  Problem problem;                            ///< of graphs, and what is made from them
  std::vector<Engine> engines;                ///< of heuristics
  Engine engine{};                            ///< of configurations and engines
  const Descriptor* configuration = nullptr;  ///< of plans

  template <typename Value>
  std::vector<Value> all(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<Value> values(found->second.size() / sizeof(Value));
    // A vector<bool> has no data, and no caller needs one.
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(Value));
    return values;
  }
  template <typename Value>
  Value one(cudnnBackendAttributeName_t name, Value otherwise = {}) const {
    const auto found = attributes.find(name);
    if (found == attributes.end() || found->second.size() != sizeof(Value)) return otherwise;
    Value value;
    std::memcpy(&value, found->second.data(), sizeof(Value));
    return value;
  }
  const Descriptor* part(cudnnBackendAttributeName_t name) const {
    return static_cast<const Descriptor*>(one<void*>(name));
  }
};

inline Descriptor* descriptor(cudnnBackendDescriptor_t from) {
  return static_cast<Descriptor*>(from);
}

/// Whether all that it needs is there, and finalized.
bool is_complete(const Descriptor& made);
/// Whether it is a tensor of four sizes.
bool is_tensor(const Descriptor& made);
/// Nullopt when this emulation has no such graph, which is an error of the caller.
std::optional<Problem> problem_of(const Descriptor& graph);

}  // namespace poseidon::emulated
