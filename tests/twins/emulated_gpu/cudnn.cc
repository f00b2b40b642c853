// cuDNN as far as the device uses it: graphs of a convolution, perhaps with a bias and a ReLU
// behind it, planned by heuristics and run. It refuses wherever the real one may: the first engine
// of its list cannot be planned; some give other bits each time, sum in 16 bits, or transform (what
// they leave are NaNs); one refuses some sizes only when it runs; the last does everything and is
// not always there. 16-bit tensors in more than two groups are refused when asked for, and channels
// last of some others when asked for, or by one of the three computations when it runs. With
// something behind the sums some sizes have no engine, groups have none on tensor cores, and some
// engines' ReLU makes 0 of NaN.

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "tests/twins/emulated_gpu/convolution.h"
#include "tests/twins/emulated_gpu/cudnn_graph.h"
#include "tests/twins/emulated_gpu/stream.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace poseidon::emulated {
namespace {

// ---- engines ----

constexpr std::size_t kWorkspaceBytes = 4096;  // of those that refuse sizes

/// The best first; the last two are fallbacks.
constexpr std::array<Engine, 8> kEngines = {{{0, Kind::kCannot, true},
                                             {1, Kind::kOtherBits, true},
                                             {2, Kind::kSumsIn16Bits, true},
                                             {3, Kind::kTransforms, true},
                                             {4, Kind::kRefuses, true},
                                             {5, Kind::kRefuses, false},
                                             {6, Kind::kAll, true},
                                             {7, Kind::kAll, false}}};
constexpr std::size_t kFallbacks = 2;

/// 16 bits in two groups at most; no channels last of images of one channel.
bool is_supported(const Problem& problem) {
  const Convolution& s = problem.sizes;
  if (problem.has_bias && (!s.has_channels_last || s.w.k % 11 == 0)) return false;
  return (problem.is_float() || s.groups() <= 2) && (!s.has_channels_last || s.x.c > 1);
}

std::vector<Engine> engines_for(const Problem& problem, cudnnBackendHeurMode_t mode) {
  std::vector<Engine> engines;
  if (!is_supported(problem)) return engines;
  for (std::size_t i = 0; i < kEngines.size(); ++i) {
    const bool is_fallback = i >= kEngines.size() - kFallbacks;
    if (is_fallback != (mode == CUDNN_HEUR_MODE_FALLBACK)) continue;
    Engine engine = kEngines[i];
    if (!problem.is_float() || problem.sizes.has_channels_last) {
      if (!engine.has_tensor_cores) continue;
      if (is_fallback && !problem.sizes.has_channels_last) continue;
    }
    if (problem.has_bias && problem.sizes.groups() > 1) engine.has_tensor_cores = false;
    engines.push_back(engine);
  }
  return engines;
}

std::vector<cudnnBackendNumericalNote_t> notes_of(const Engine& engine, const Problem& problem) {
  std::vector<cudnnBackendNumericalNote_t> notes;
  if (engine.has_tensor_cores) notes.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  if (engine.kind == Kind::kOtherBits) notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  if (engine.kind == Kind::kSumsIn16Bits) {
    notes.push_back(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
  }
  if (engine.kind == Kind::kTransforms) {
    notes.push_back(problem.is_float() ? CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS
                                       : CUDNN_NUMERICAL_NOTE_WINOGRAD);
  }
  return notes;
}

/// Channels last of so many outputs, or a multiple, each computation refuses when it runs.
int refused_multiple(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return 5;
    case Pass::kOfWeight:
      return 17;
    case Pass::kOfInput:
      break;
  }
  return 16;
}

std::atomic<unsigned long> with_channels_last{0}, with_bias{0};

cudnnStatus_t finalize(Descriptor& made) {
  if (!is_complete(made)) return CUDNN_STATUS_BAD_PARAM;
  switch (made.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return is_tensor(made) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: {
      const auto problem = problem_of(made);
      if (!problem) return CUDNN_STATUS_BAD_PARAM;
      made.problem = *problem;
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
      made.problem = made.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->problem;
      const auto mode = made.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
      made.engines = engines_for(made.problem, mode);
      // "No engine" comes as an error or as an empty list.
      return made.engines.empty() && mode == CUDNN_HEUR_MODE_FALLBACK ? CUDNN_STATUS_NOT_SUPPORTED
                                                                      : CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      made.configuration = made.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      return made.configuration->engine.kind == Kind::kCannot ? CUDNN_STATUS_NOT_SUPPORTED
                                                              : CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return made.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() ==
                     made.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()
                 ? CUDNN_STATUS_SUCCESS
                 : CUDNN_STATUS_BAD_PARAM;
    default:
      return CUDNN_STATUS_SUCCESS;
  }
}

std::size_t workspace_of(const Engine& engine) {
  return engine.kind == Kind::kRefuses ? kWorkspaceBytes : 0;
}

/// Element by element into `values`; how many there are goes to *count.
template <typename Value>
cudnnStatus_t tell(const std::vector<Value>& from, std::int64_t wanted, std::int64_t* count,
                   void* values) {
  *count = static_cast<std::int64_t>(from.size());
  const auto told = static_cast<std::size_t>(std::min(wanted, *count));
  if (told > 0) std::memcpy(values, from.data(), told * sizeof(Value));
  return CUDNN_STATUS_SUCCESS;
}

/// Attributes of descriptors: written into descriptors that the caller has made.
cudnnStatus_t tell_engines(const Descriptor& from, std::int64_t wanted, std::int64_t* count,
                           void* made) {
  *count = static_cast<std::int64_t>(from.engines.size());
  for (std::int64_t i = 0; i < std::min(wanted, *count); ++i) {
    Descriptor* const to = descriptor(static_cast<void**>(made)[i]);
    if (to->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) return CUDNN_STATUS_BAD_PARAM;
    to->problem = from.problem;
    to->engine = from.engines[static_cast<std::size_t>(i)];
    to->is_final = true;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t tell_engine(const Descriptor& from, std::int64_t wanted, std::int64_t* count,
                          void* made) {
  if (wanted != 1) return CUDNN_STATUS_BAD_PARAM;
  Descriptor* const to = descriptor(*static_cast<void**>(made));
  if (to->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR) return CUDNN_STATUS_BAD_PARAM;
  to->problem = from.problem;
  to->engine = from.engine;
  to->is_final = true;
  *count = 1;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace
}  // namespace poseidon::emulated

using namespace poseidon::emulated;  // NOLINT: what follows is another's interface

extern "C" {

/// For tests: how many computations had channels last, and a bias behind them.
unsigned long poseidon_emulated_channels_last() { return with_channels_last; }
unsigned long poseidon_emulated_biases_behind() { return with_bias; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "success" : "refused by the emulated cuDNN";
}
void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  if (bytes > 0) message[0] = '\0';
}

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
std::size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  count_setup("cudnnCreate");
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  count_setup("cudnnDestroy");
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  count_setup("cudnnBackendCreateDescriptor");
  *made = new Descriptor{.type = type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t which) {
  count_setup("cudnnBackendDestroyDescriptor");
  delete descriptor(which);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t which,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  const auto rule = rules().find(name);
  Descriptor& to = *descriptor(which);
  if (to.is_final || rule == rules().end() || rule->second.of != to.type ||
      rule->second.type != type || count < 1 || values == nullptr) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const auto* const bytes = static_cast<const std::byte*>(values);
  to.attributes[name].assign(bytes, bytes + static_cast<std::size_t>(count) * rule->second.bytes);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t which) {
  Descriptor& made = *descriptor(which);
  if (made.is_final) return CUDNN_STATUS_BAD_PARAM;
  const cudnnStatus_t status = finalize(made);
  made.is_final = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const which,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t wanted,
                                       std::int64_t* count, void* values) {
  const Descriptor& from = *descriptor(which);
  if (!from.is_final) return CUDNN_STATUS_NOT_INITIALIZED;
  const auto is = [&](cudnnBackendDescriptorType_t of, cudnnBackendAttributeType_t its_type) {
    return from.type == of && type == its_type;
  };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      if (!is(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR)) break;
      return tell_engines(from, wanted, count, values);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      if (!is(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR)) break;
      return tell_engine(from, wanted, count, values);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      if (!is(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_TYPE_INT64)) break;
      return tell(std::vector<std::int64_t>{from.engine.number}, wanted, count, values);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      if (!is(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_TYPE_NUMERICAL_NOTE)) break;
      return tell(notes_of(from.engine, from.problem), wanted, count, values);
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      if (!is(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_TYPE_BEHAVIOR_NOTE)) break;
      return tell(std::vector<cudnnBackendBehaviorNote_t>{}, wanted, count, values);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      if (!is(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_TYPE_INT64)) break;
      return tell(std::vector<std::int64_t>{static_cast<std::int64_t>(
                      workspace_of(from.configuration->engine))},
                  wanted, count, values);
    default:
      break;
  }
  return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_at,
                                  cudnnBackendDescriptor_t pack_at) {
  const Descriptor& plan = *descriptor(plan_at);
  const Descriptor& pack = *descriptor(pack_at);
  if (plan.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !plan.is_final ||
      pack.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !pack.is_final) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const Problem problem = plan.configuration->problem;
  const Engine engine = plan.configuration->engine;
  const Convolution& sizes = problem.sizes;
  if (engine.kind == Kind::kRefuses && sizes.products() % 5 == 0) return CUDNN_STATUS_NOT_SUPPORTED;
  if (sizes.has_channels_last && sizes.w.k % refused_multiple(problem.pass) == 0) {
    return CUDNN_STATUS_NOT_SUPPORTED;  // by all, when they run
  }
  const auto numbers = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto data = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto place = [&](std::int64_t number, std::size_t elements) -> void* {
    constexpr std::uintptr_t kAlignmentBytes = 16;
    const auto at = std::find(numbers.begin(), numbers.end(), number) - numbers.begin();
    if (at == static_cast<std::ptrdiff_t>(numbers.size())) return nullptr;
    void* const found = data[static_cast<std::size_t>(at)];
    return reinterpret_cast<std::uintptr_t>(found) % kAlignmentBytes == 0 &&
                   is_device_memory(found, sizes.bytes(elements))
               ? found
               : nullptr;
  };
  void* const x = place(problem.x, sizes.x_elements());
  void* const w = place(problem.w, sizes.w_elements());
  void* const y = place(problem.y, sizes.y_elements());
  void* const bias =
      problem.has_bias ? place(problem.bias, static_cast<std::size_t>(sizes.y.c)) : nullptr;
  void* const workspace = pack.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const std::size_t needed = workspace_of(engine);
  if (!is_usable(handle->stream) || x == nullptr || w == nullptr || y == nullptr ||
      (problem.has_bias && bias == nullptr) ||
      (needed > 0 && !is_device_memory(workspace, needed))) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (sizes.has_channels_last) ++with_channels_last;
  if (problem.has_bias) ++with_bias;
  const bool is_right = engine.kind == Kind::kRefuses || engine.kind == Kind::kAll;
  const int swallowed_multiple = engine.kind == Kind::kRefuses ? 7 : 14;  // of outputs
  const Behind behind = {bias, problem.has_relu,
                         /*keeps_nans=*/sizes.w.k % swallowed_multiple != 0};
  handle->stream->push([=] {
    spoil(workspace, needed);
    if (is_right) {
      compute(problem.pass, problem.sizes, engine.has_tensor_cores, behind, x, w, y);
    } else {
      leave_nans(problem.pass, problem.sizes, x, w, y);
    }
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
