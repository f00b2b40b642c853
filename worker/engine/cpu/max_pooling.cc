// Max pooling. Of equal values the first in row order wins, as in Caffe and PyTorch; a NaN wins
// over everything.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "worker/engine/cpu/loop_operators.h"
#include "worker/engine/cpu/parallel.h"

namespace poseidon {
namespace {

constexpr std::int64_t kGrainElements = 4096;

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
        chosen_(static_cast<std::size_t>(planes_ * out_height_ * out_width_)) {
    for (std::int64_t x = 0; x < layer.kernel_w; ++x) {
      columns_.push_back(positions_inside(x, layer.pad_w, layer.stride_w, width_, out_width_));
    }
  }

  absl::Status forward(const ForwardArgs& args) override {
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
  template <typename Body>
  void for_planes(const Body& body) {
    const std::int64_t work = out_height_ * out_width_ * layer_.kernel_h * layer_.kernel_w;
    parallel_for(planes_, std::max<std::int64_t>(1, kGrainElements / work),
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
  std::vector<Positions> columns_;    // per column of the window
  std::vector<std::int32_t> chosen_;  // per output: index in its input plane (< 2^31 elements)
};

}  // namespace

std::unique_ptr<LayerOperator> make_max_pooling(const LayerSpec& layer,
                                                const OperatorOptions& options) {
  return std::make_unique<MaxPooling>(layer, options);
}

}  // namespace poseidon
