// Max pooling. Of equal values the first in row order wins, as in Caffe and PyTorch; a NaN wins
// over everything.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "worker/engine/cpu/channel_block.h"
#include "worker/engine/cpu/loop_operators.h"
#include "worker/engine/cpu/parallel.h"
#include "worker/engine/cpu/vector_loops.h"

namespace poseidon {
namespace {

constexpr std::int64_t kPoolGrain = 4096;

// Output positions (begin, end) whose window element `offset` lies inside the image.
struct Positions {
  std::int64_t begin, end;
};
Positions positions_inside(std::int64_t offset, std::int64_t pad, std::int64_t stride,
                           std::int64_t size, std::int64_t outputs) {
  const std::int64_t begin = offset >= pad ? 0 : (pad - offset + stride - 1) / stride;
  const std::int64_t last = size - 1 + pad - offset;
  return {begin, last < 0 ? 0 : std::min(outputs, last / stride + 1)};
}

class MaxPooling final : public LayerOperator {
 public:
  MaxPooling(const LayerSpec& layer, const OperatorOptions& options)
      : layer_(layer),
        planes_(options.batch_size * layer.input_shape[0]),
        height_(layer.input_shape[1]),
        width_(layer.input_shape[2]),
        out_height_(layer.output_shape[1]),
        out_width_(layer.output_shape[2]),
        lanes_(options.input_layout() == Layout::kDevice ? channel_block() : 1),
        window_{.height = height_,
                .width = width_,
                .out_height = out_height_,
                .out_width = out_width_,
                .kernel_h = layer.kernel_h,
                .kernel_w = layer.kernel_w,
                .stride_h = layer.stride_h,
                .stride_w = layer.stride_w,
                .pad_h = layer.pad_h,
                .pad_w = layer.pad_w},
        chosen_(static_cast<std::size_t>(planes_ * out_height_ * out_width_)) {
    for (std::int64_t x = 0; x < layer.kernel_w; ++x) {
      columns_.push_back(positions_inside(x, layer.pad_w, layer.stride_w, width_, out_width_));
    }
  }

  absl::Status forward(const ForwardArgs& args) override {
    if (lanes_ > 1) return forward_blocked(args);
    for_planes([&](std::int64_t plane) {
      const float* in = args.inputs[0] + plane * height_ * width_;
      for (std::int64_t row = 0; row < out_height_; ++row) {
        const std::int64_t at = (plane * out_height_ + row) * out_width_;
        pool_row(in, row, args.output + at, chosen_.data() + at);
      }
    });
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    float* const gradient = args.input_gradients[0];
    if (gradient == nullptr) return absl::OkStatus();
    if (lanes_ > 1) return backward_blocked(args);
    for_planes([&](std::int64_t plane) {
      float* out = gradient + plane * height_ * width_;
      std::fill_n(out, height_ * width_, 0.0f);
      const std::int64_t outputs = out_height_ * out_width_;
      const float* in = args.output_gradient + plane * outputs;
      const std::int32_t* chosen = chosen_.data() + plane * outputs;
      for (std::int64_t i = 0; i < outputs; ++i) out[chosen[i]] += in[i];
    });
    return absl::OkStatus();
  }

 private:
  absl::Status forward_blocked(const ForwardArgs& args) {
    for_blocks([&](std::int64_t in, std::int64_t out) {
      loops_.max_pool(window_, args.inputs[0] + in, lanes_, args.output + out,
                      chosen_.data() + out);
    });
    return absl::OkStatus();
  }

  absl::Status backward_blocked(const BackwardArgs& args) {
    for_blocks([&](std::int64_t in, std::int64_t out) {
      float* const gradient = args.input_gradients[0] + in;
      std::fill_n(gradient, height_ * width_ * lanes_, 0.0f);
      loops_.max_pool_gradient(window_, args.output_gradient + out, chosen_.data() + out, lanes_,
                               gradient);
    });
    return absl::OkStatus();
  }

  // body(offset in the input, offset in the output) of each plane of `lanes_` channels.
  template <typename Body>
  void for_blocks(const Body& body) {
    const std::int64_t outputs = out_height_ * out_width_ * lanes_;
    const std::int64_t work = outputs * layer_.kernel_h * layer_.kernel_w;
    parallel_for(planes_ / lanes_, std::max<std::int64_t>(1, kPoolGrain / work),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     body(i * height_ * width_ * lanes_, i * outputs);
                   }
                 });
  }

  template <typename Body>
  void for_planes(const Body& body) {
    const std::int64_t work = out_height_ * out_width_ * layer_.kernel_h * layer_.kernel_w;
    parallel_for(planes_, std::max<std::int64_t>(1, kPoolGrain / work),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t plane = begin; plane < end; ++plane) body(plane);
                 });
  }

  // A whole output row at a time, one element of the window after the other: the inner loop has no
  // test of the borders and the compiler can use vectors.
  void pool_row(const float* in, std::int64_t row, float* best, std::int32_t* chosen) const {
    std::fill_n(best, out_width_, -std::numeric_limits<float>::infinity());
    std::fill_n(chosen, out_width_, -1);
    const std::int64_t stride = layer_.stride_w;
    for (std::int64_t y = 0; y < layer_.kernel_h; ++y) {
      const std::int64_t in_row = row * layer_.stride_h + y - layer_.pad_h;
      if (in_row < 0 || in_row >= height_) continue;
      for (std::int64_t x = 0; x < layer_.kernel_w; ++x) {
        const Positions inside = columns_[static_cast<std::size_t>(x)];
        const std::int64_t first = in_row * width_ + x - layer_.pad_w;
        for (std::int64_t i = inside.begin; i < inside.end; ++i) {
          const std::int64_t index = first + i * stride;
          const float value = in[index];
          // The last clause chooses an element even where all of them are minus infinity.
          const bool wins = value > best[i] || std::isnan(value) || chosen[i] < 0;
          best[i] = wins ? value : best[i];
          chosen[i] = wins ? static_cast<std::int32_t>(index) : chosen[i];
        }
      }
    }
  }

  const LayerSpec layer_;
  const std::int64_t planes_, height_, width_, out_height_, out_width_;
  const std::int64_t lanes_;  // channels side by side
  const MaxWindow window_;
  const VectorLoops& loops_ = vector_loops();
  std::vector<Positions> columns_;  // per column of the window
  // Per output: index in its input plane (< 2^31 elements), or with lanes that in its window.
  std::vector<std::int32_t> chosen_;
};

}  // namespace

std::unique_ptr<LayerOperator> make_max_pooling(const LayerSpec& layer,
                                                const OperatorOptions& options) {
  return std::make_unique<MaxPooling>(layer, options);
}

}  // namespace poseidon
