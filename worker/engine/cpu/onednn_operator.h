#pragma once

// Shared by the operators on oneDNN: converts exceptions to statuses, and tensors between the
// layers' layout and the layout that a primitive prefers.
//
// Called by: the operators on oneDNN and worker/engine/cpu/cpu_device.h. Calls: oneDNN.

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dnnl.hpp"
#include "worker/engine/cpu/channel_block.h"
#include "worker/engine/device.h"

namespace poseidon {

/// Memory for tensors on their way between layouts. All operators of a device share it: only one
/// runs at a time, and nothing in it outlives a forward or a backward.
class Scratch {
 public:
  /// While operators are made: requires at least this many bytes from now on. May throw
  /// std::bad_alloc.
  void reserve(std::size_t bytes);
  std::byte* at(std::size_t offset) const { return memory_.get() + offset; }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> memory_{nullptr, nullptr};
  std::size_t bytes_ = 0;
};

/// One engine and stream for all operators of a device.
struct OnednnContext {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  Scratch scratch;
};

/// Slices of the scratch memory that one operator uses at the same time.
class ScratchSlices {
 public:
  explicit ScratchSlices(OnednnContext& context) : context_(context) {}
  /// Offset of `bytes` of the scratch memory.
  std::size_t take(std::size_t bytes);
  OnednnContext& context() const { return context_; }

 private:
  OnednnContext& context_;
  std::size_t used_ = 0;
};

/// Implement run_forward and run_backward; they may throw dnnl::error.
class OnednnOperator : public LayerOperator {
 public:
  absl::Status forward(const ForwardArgs& args) final {
    return guarded([&] { return run_forward(args); });
  }
  absl::Status backward(const BackwardArgs& args) final {
    return guarded([&] { return run_backward(args); });
  }

 protected:
  OnednnOperator(std::string layer, OnednnContext& context)
      : context_(context), layer_(std::move(layer)) {}
  virtual absl::Status run_forward(const ForwardArgs& args) = 0;
  virtual absl::Status run_backward(const BackwardArgs& args) = 0;
  OnednnContext& context_;

 private:
  template <typename Body>
  absl::Status guarded(const Body& body) {
    try {
      absl::Status status = body();
      context_.stream.wait();
      return status;
    } catch (const dnnl::error& error) {
      return absl::InternalError(
          absl::StrCat("layer '", layer_, "': oneDNN failed: ", error.what()));
    }
  }
  const std::string layer_;
};

/// Arguments of one primitive. Built once: a dnnl::memory is a handle, so what set_data_handle
/// changes later is seen here too, and a pass builds no maps.
using Arguments = std::unordered_map<int, dnnl::memory>;

/// A tensor on its way into a primitive.
class Inlet {
 public:
  Inlet() = default;
  Inlet(ScratchSlices& slices, const dnnl::memory::desc& given, const dnnl::memory::desc& wanted);
  /// Brings the tensor at `data` into memory(); converted if need be, else by reference: `data`
  /// must then stay until the primitive has run. Valid until the operator returns.
  void load(OnednnContext& context, const float* data);
  /// The memory that the primitive reads; always the same handle.
  const dnnl::memory& memory() const { return reorders_ ? wanted_ : given_; }

 private:
  bool reorders_ = false;
  std::size_t scratch_offset_ = 0;
  dnnl::memory given_, wanted_;
  dnnl::reorder reorder_;
};

/// A tensor on its way out of a primitive.
class Outlet {
 public:
  Outlet() = default;
  Outlet(ScratchSlices& slices, const dnnl::memory::desc& wanted, const dnnl::memory::desc& given);
  /// Before the primitive: the tensor shall end up at `data`.
  void aim(OnednnContext& context, float* data);
  /// The memory that the primitive writes; always the same handle.
  const dnnl::memory& memory() const { return reorders_ ? given_ : wanted_; }
  /// After the primitive: moves the tensor to the place that `aim` named.
  void deliver(OnednnContext& context);

 private:
  bool reorders_ = false;
  std::size_t scratch_offset_ = 0;
  dnnl::memory wanted_, given_;
  dnnl::reorder reorder_;
};

/// A tensor between layers.
dnnl::memory::desc tensor_desc(std::int64_t batch, const Shape& shape, Layout layout);
/// Plain layout, dimensions as in the executor's tensors.
dnnl::memory::desc plain_desc(const dnnl::memory::dims& dims);
/// The layout is oneDNN's choice.
dnnl::memory::desc any_desc(const dnnl::memory::dims& dims);
/// {batch, shape...}
dnnl::memory::dims batch_dims(std::int64_t batch, const Shape& shape);
/// A memory object without memory: set_data_handle gives it some for each call.
dnnl::memory handle(const OnednnContext& context, const dnnl::memory::desc& desc);

// One file each. They may throw dnnl::error.
std::unique_ptr<LayerOperator> make_convolution(const LayerSpec& layer,
                                                const OperatorOptions& options,
                                                OnednnContext& context);
std::unique_ptr<LayerOperator> make_fully_connected(const LayerSpec& layer,
                                                    const OperatorOptions& options,
                                                    OnednnContext& context);
std::unique_ptr<LayerOperator> make_average_pooling(const LayerSpec& layer,
                                                    const OperatorOptions& options,
                                                    OnednnContext& context);
std::unique_ptr<LayerOperator> make_lrn(const LayerSpec& layer, const OperatorOptions& options,
                                        OnednnContext& context);

}  // namespace poseidon
