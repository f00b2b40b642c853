#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "tests/twins/reference_device/reference_operators.h"

namespace poseidon {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Index into N x C x H x W.
std::int64_t offset(const Shape& shape, std::int64_t n, std::int64_t c, std::int64_t y,
                    std::int64_t x) {
  return ((n * shape[0] + c) * shape[1] + y) * shape[2] + x;
}

class WindowOperator : public LayerOperator {
 public:
  WindowOperator(const LayerSpec& layer, const OperatorOptions& options)
      : layer_(layer), samples_(options.batch_size) {}

 protected:
  // Calls body(kernel_y, kernel_x, input_y, input_x) for the elements of the window of output
  // position (y, x) that lie inside the image.
  void for_window(std::int64_t y, std::int64_t x,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>&
                      body) const {
    for (std::int64_t ky = 0; ky < layer_.kernel_h; ++ky) {
      for (std::int64_t kx = 0; kx < layer_.kernel_w; ++kx) {
        const std::int64_t in_y = y * layer_.stride_h + ky - layer_.pad_h;
        const std::int64_t in_x = x * layer_.stride_w + kx - layer_.pad_w;
        if (in_y < 0 || in_x < 0 || in_y >= layer_.input_shape[1] || in_x >= layer_.input_shape[2])
          continue;
        body(ky, kx, in_y, in_x);
      }
    }
  }

  void for_outputs(const std::function<void(std::int64_t, std::int64_t, std::int64_t,
                                            std::int64_t)>& body) const {
    const Shape& out = layer_.output_shape;
    for (std::int64_t n = 0; n < samples_; ++n)
      for (std::int64_t c = 0; c < out[0]; ++c)
        for (std::int64_t y = 0; y < out[1]; ++y)
          for (std::int64_t x = 0; x < out[2]; ++x) body(n, c, y, x);
  }

  std::int64_t in_at(std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) const {
    return offset(layer_.input_shape, n, c, y, x);
  }
  std::int64_t out_at(std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) const {
    return offset(layer_.output_shape, n, c, y, x);
  }
  void deliver(const std::vector<double>& sums, float* target) const {
    if (target == nullptr) return;
    for (std::size_t i = 0; i < sums.size(); ++i) target[i] = static_cast<float>(sums[i]);
  }
  std::vector<double> input_sums() const {
    return std::vector<double>(at(samples_ * element_count(layer_.input_shape)), 0.0);
  }

  const LayerSpec layer_;
  const std::int64_t samples_;
};

class Convolution final : public WindowOperator {
 public:
  using WindowOperator::WindowOperator;

  absl::Status forward(const ForwardArgs& args) override {
    const float* bias = args.parameters + weight_count();
    for_outputs([&](std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
      double sum = layer_.parameters.size() > 1 ? bias[c] : 0.0;
      for_products(n, c, y, x, [&](std::int64_t in, std::int64_t weight) {
        sum += static_cast<double>(args.inputs[0][in]) * args.parameters[weight];
      });
      args.output[out_at(n, c, y, x)] = static_cast<float>(sum);
    });
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    std::vector<double> weight_sums(at(weight_count()), 0.0);
    std::vector<double> bias_sums(layer_.parameters.size() > 1 ? at(layer_.output_shape[0]) : 0,
                                  0.0);
    std::vector<double> data_sums = input_sums();
    for_outputs([&](std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
      const double gradient = args.output_gradient[out_at(n, c, y, x)];
      if (!bias_sums.empty()) bias_sums[at(c)] += gradient;
      for_products(n, c, y, x, [&](std::int64_t in, std::int64_t weight) {
        weight_sums[at(weight)] += gradient * args.forward.inputs[0][in];
        data_sums[at(in)] += gradient * args.forward.parameters[weight];
      });
    });
    deliver(weight_sums, args.parameter_gradients);
    deliver(bias_sums, args.parameter_gradients + weight_count());
    deliver(data_sums, args.input_gradients[0]);
    return absl::OkStatus();
  }

 private:
  std::int64_t weight_count() const { return element_count(layer_.parameters.front().shape); }

  // body(input index, weight index) for every product in output (n, c, y, x).
  template <typename Body>
  void for_products(std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x,
                    const Body& body) const {
    const Shape& weight = layer_.parameters.front().shape;
    const std::int64_t group = c / (layer_.output_shape[0] / layer_.groups);
    for (std::int64_t i = 0; i < weight[1]; ++i) {
      for_window(y, x, [&](std::int64_t ky, std::int64_t kx, std::int64_t in_y, std::int64_t in_x) {
        body(in_at(n, group * weight[1] + i, in_y, in_x),
             ((c * weight[1] + i) * weight[2] + ky) * weight[3] + kx);
      });
    }
  }
};

class Pooling final : public WindowOperator {
 public:
  Pooling(const LayerSpec& layer, const OperatorOptions& options)
      : WindowOperator(layer, options),
        chosen_(at(options.batch_size * element_count(layer.output_shape))) {}

  absl::Status forward(const ForwardArgs& args) override {
    for_outputs([&](std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
      double sum = 0.0;
      const Choice choice = choose(args.inputs[0], n, c, y, x, sum);
      chosen_[at(out_at(n, c, y, x))] = choice;
      args.output[out_at(n, c, y, x)] = layer_.pool == LayerSpec::Pool::kMax
                                            ? args.inputs[0][choice.index]
                                            : static_cast<float>(sum / divisor(choice, y, x));
    });
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    std::vector<double> sums = input_sums();
    for_outputs([&](std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
      const double gradient = args.output_gradient[out_at(n, c, y, x)];
      const Choice& choice = chosen_[at(out_at(n, c, y, x))];
      if (layer_.pool == LayerSpec::Pool::kMax) {
        sums[at(choice.index)] += gradient;
        return;
      }
      for_window(y, x, [&](std::int64_t, std::int64_t, std::int64_t in_y, std::int64_t in_x) {
        sums[at(in_at(n, c, in_y, in_x))] += gradient / divisor(choice, y, x);
      });
    });
    deliver(sums, args.input_gradients[0]);
    return absl::OkStatus();
  }

 private:
  struct Choice {
    std::int64_t index = -1;  // of the largest element, the first of equals; a NaN is largest
    double inside = 0.0;      // how many elements of the window lie inside the image
  };
  // Padding counts where asked for, the overhang of ceil_mode behind it never (as in PyTorch).
  double divisor(const Choice& choice, std::int64_t y, std::int64_t x) const {
    if (!layer_.count_padding) return choice.inside;
    const auto extent = [](std::int64_t begin, std::int64_t kernel, std::int64_t size) {
      return static_cast<double>(std::min(begin + kernel, size) - begin);
    };
    return extent(y * layer_.stride_h, layer_.kernel_h, layer_.input_shape[1] + 2 * layer_.pad_h) *
           extent(x * layer_.stride_w, layer_.kernel_w, layer_.input_shape[2] + 2 * layer_.pad_w);
  }
  Choice choose(const float* in, std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x,
                double& sum) const {
    Choice choice;
    for_window(y, x, [&](std::int64_t, std::int64_t, std::int64_t in_y, std::int64_t in_x) {
      const std::int64_t index = in_at(n, c, in_y, in_x);
      if (choice.index < 0 || in[index] > in[choice.index] || std::isnan(in[index])) {
        choice.index = index;
      }
      choice.inside += 1.0;
      sum += in[index];
    });
    return choice;
  }

  std::vector<Choice> chosen_;  // per output, of the last forward
};

class Lrn final : public WindowOperator {
 public:
  using WindowOperator::WindowOperator;

  absl::Status forward(const ForwardArgs& args) override {
    for_outputs([&](std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
      const double scale = scale_at(args.inputs[0], n, c, y, x);
      const std::int64_t i = out_at(n, c, y, x);
      args.output[i] = static_cast<float>(args.inputs[0][i] * std::pow(scale, -layer_.beta));
    });
    return absl::OkStatus();
  }

  // y_c = x_c s_c^-b, ds_c/dx_j = 2 a / n x_j for j near c.
  absl::Status backward(const BackwardArgs& args) override {
    const float* in = args.forward.inputs[0];
    std::vector<double> sums = input_sums();
    const double slope = 2.0 * layer_.alpha / static_cast<double>(layer_.local_size);
    for_outputs([&](std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
      const std::int64_t i = in_at(n, c, y, x);
      const double gradient = args.output_gradient[i];
      const double scale = scale_at(in, n, c, y, x);
      sums[at(i)] += gradient * std::pow(scale, -layer_.beta);
      const double common = gradient * in[i] * -layer_.beta * std::pow(scale, -layer_.beta - 1.0);
      for_channels(c, [&](std::int64_t j) {
        const std::int64_t other = in_at(n, j, y, x);
        sums[at(other)] += common * slope * in[other];
      });
    });
    deliver(sums, args.input_gradients[0]);
    return absl::OkStatus();
  }

 private:
  template <typename Body>
  void for_channels(std::int64_t c, const Body& body) const {
    const std::int64_t half = layer_.local_size / 2;
    for (std::int64_t j = c - half; j <= c + half; ++j) {
      if (j >= 0 && j < layer_.input_shape[0]) body(j);
    }
  }
  double scale_at(const float* in, std::int64_t n, std::int64_t c, std::int64_t y,
                  std::int64_t x) const {
    double sum = 0.0;
    for_channels(c, [&](std::int64_t j) {
      const double value = in[in_at(n, j, y, x)];
      sum += value * value;
    });
    return layer_.k + layer_.alpha / static_cast<double>(layer_.local_size) * sum;
  }
};

}  // namespace

std::unique_ptr<LayerOperator> reference_convolution(const LayerSpec& layer,
                                                     const OperatorOptions& options) {
  return std::make_unique<Convolution>(layer, options);
}

std::unique_ptr<LayerOperator> reference_pooling(const LayerSpec& layer,
                                                 const OperatorOptions& options) {
  return std::make_unique<Pooling>(layer, options);
}

std::unique_ptr<LayerOperator> reference_lrn(const LayerSpec& layer,
                                             const OperatorOptions& options) {
  return std::make_unique<Lrn>(layer, options);
}

}  // namespace poseidon
