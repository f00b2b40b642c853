// Batch normalisation (Ioffe, Szegedy 2015, section 3) in loops of our own. oneDNN's splits the
// sums of a channel among the threads, so that its bits depend on their number; here a sample's
// plane is summed by one thread, in double, and the planes of a channel are added in sample order.

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "worker/engine/batch_norm_errors.h"
#include "worker/engine/cpu/loop_operators.h"
#include "worker/engine/cpu/parallel.h"

namespace poseidon {
namespace {

constexpr std::int64_t kGrainElements = 16384;
constexpr std::int64_t kLanes = 8;

// Two sums over one plane, or over one channel.
struct Sums {
  double first = 0.0, second = 0.0;
};

// The sums of first(i) and second(i): lane by lane, so that the compiler can use vectors without
// changing the order of the additions.
template <typename First, typename Second>
Sums lane_sums(std::int64_t count, const First& first, const Second& second) {
  std::array<double, kLanes> a{}, b{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      a[static_cast<std::size_t>(lane)] += first(i + lane);
      b[static_cast<std::size_t>(lane)] += second(i + lane);
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    a[lane] += first(i);
    b[lane] += second(i);
  }
  Sums sums;
  for (std::size_t lane = 0; lane < a.size(); ++lane) {
    sums.first += a[lane];
    sums.second += b[lane];
  }
  return sums;
}

class BatchNorm final : public LayerOperator {
 public:
  BatchNorm(const LayerSpec& layer, const OperatorOptions& options)
      : layer_(layer),
        samples_(options.batch_size),
        channels_(layer.input_shape.front()),
        plane_(element_count(layer.input_shape) / channels_),
        partial_(static_cast<std::size_t>(samples_ * channels_)),
        mean_(static_cast<std::size_t>(channels_)),
        inverse_(static_cast<std::size_t>(channels_)),
        factors_(static_cast<std::size_t>(channels_)) {}

  absl::Status forward(const ForwardArgs& args) override {
    if (args.phase == Phase::kTrain) {
      if (args.valid_samples * plane_ < 2) return too_few_for_batch_norm(layer_);
      take_moments(args);
    }
    for (std::int64_t c = 0; c < channels_; ++c) {
      const bool training = args.phase == Phase::kTrain;
      const double mean = training ? mean_[at(c)] : args.statistics[c];
      const double inverse =
          training ? inverse_[at(c)] : inverse_deviation(args.statistics[channels_ + c]);
      factors_[at(c)] = {static_cast<float>(mean), static_cast<float>(args.parameters[c] * inverse),
                         args.parameters[channels_ + c]};
    }
    for_planes(samples_, [&](std::int64_t offset, std::int64_t c) {
      const auto [mean, scale, shift] = factors_[at(c)];
      const float* in = args.inputs[0] + offset;
      float* out = args.output + offset;
      for (std::int64_t i = 0; i < plane_; ++i) out[i] = (in[i] - mean) * scale + shift;
    });
    return absl::OkStatus();
  }

  // With x^ = (x - mean) / deviation: d weight = sum dy x^, d bias = sum dy,
  // dx = weight / deviation * (dy - d bias / m - x^ d weight / m).
  absl::Status backward(const BackwardArgs& args) override {
    const std::int64_t valid = args.forward.valid_samples;
    const float* const in = args.forward.inputs[0];
    for_planes(valid, [&](std::int64_t offset, std::int64_t c) {
      const double mean = mean_[at(c)];
      const float* x = in + offset;
      const float* dy = args.output_gradient + offset;
      partial_[at(offset / plane_)] = lane_sums(
          plane_, [&](std::int64_t i) -> double { return dy[i]; },
          [&](std::int64_t i) { return dy[i] * (x[i] - mean); });
    });
    const auto count = static_cast<double>(valid * plane_);
    for (std::int64_t c = 0; c < channels_; ++c) {
      const Sums sums = channel_sums(valid, c);
      const double inverse = inverse_[at(c)];
      args.parameter_gradients[c] = static_cast<float>(sums.second * inverse);
      args.parameter_gradients[channels_ + c] = static_cast<float>(sums.first);
      const double scale = args.forward.parameters[c] * inverse;
      factors_[at(c)] = {static_cast<float>(scale),
                         static_cast<float>(-scale * inverse * inverse * sums.second / count),
                         static_cast<float>(-scale * sums.first / count)};
    }
    float* const out = args.input_gradients[0];
    if (out == nullptr) return absl::OkStatus();
    for_planes(valid, [&](std::int64_t offset, std::int64_t c) {
      const auto [of_gradient, of_input, constant] = factors_[at(c)];
      const auto mean = static_cast<float>(mean_[at(c)]);
      const float* x = in + offset;
      const float* dy = args.output_gradient + offset;
      float* dx = out + offset;
      for (std::int64_t i = 0; i < plane_; ++i) {
        dx[i] = of_gradient * dy[i] + (of_input * (x[i] - mean) + constant);
      }
    });
    const std::int64_t sample = channels_ * plane_;
    std::fill(out + valid * sample, out + samples_ * sample, 0.0f);
    return absl::OkStatus();
  }

 private:
  // What one pass over a channel's values computes with.
  struct Factors {
    float a, b, c;
  };

  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  double inverse_deviation(double variance) const {
    return 1.0 / std::sqrt(variance + layer_.epsilon);
  }

  // body(offset of the plane, channel), each plane once, in any order.
  template <typename Body>
  void for_planes(std::int64_t samples, const Body& body) const {
    parallel_for(samples * channels_, std::max<std::int64_t>(1, kGrainElements / plane_),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) body(i * plane_, i % channels_);
                 });
  }

  Sums channel_sums(std::int64_t samples, std::int64_t c) const {
    Sums sums;
    for (std::int64_t n = 0; n < samples; ++n) {
      sums.first += partial_[at(n * channels_ + c)].first;
      sums.second += partial_[at(n * channels_ + c)].second;
    }
    return sums;
  }

  // Mean and deviation of each channel's valid values; moves the running statistics. Squares of
  // float are exact in double, so the difference of the two sums loses nothing that float32 shows
  // unless the mean is a million deviations.
  void take_moments(const ForwardArgs& args) {
    for_planes(args.valid_samples, [&](std::int64_t offset, std::int64_t) {
      const float* x = args.inputs[0] + offset;
      partial_[at(offset / plane_)] = lane_sums(
          plane_, [&](std::int64_t i) -> double { return x[i]; },
          [&](std::int64_t i) { return static_cast<double>(x[i]) * x[i]; });
    });
    const auto count = static_cast<double>(args.valid_samples * plane_);
    const auto follow = [&](float& running, double batch) {
      running = static_cast<float>((1.0 - layer_.momentum) * running + layer_.momentum * batch);
    };
    for (std::int64_t c = 0; c < channels_; ++c) {
      const Sums sums = channel_sums(args.valid_samples, c);
      const double mean = sums.first / count;
      const double difference = sums.second / count - mean * mean;
      const double variance = difference < 0.0 ? 0.0 : difference;  // a NaN stays one
      mean_[at(c)] = mean;
      inverse_[at(c)] = inverse_deviation(variance);
      follow(args.statistics[c], mean);
      follow(args.statistics[channels_ + c], variance * count / (count - 1.0));
    }
  }

  const LayerSpec layer_;
  const std::int64_t samples_, channels_, plane_;
  std::vector<Sums> partial_;           // per sample and channel
  std::vector<double> mean_, inverse_;  // per channel, of the last forward in training
  std::vector<Factors> factors_;        // per channel
};

}  // namespace

std::unique_ptr<LayerOperator> make_batch_norm(const LayerSpec& layer,
                                               const OperatorOptions& options) {
  return std::make_unique<BatchNorm>(layer, options);
}

}  // namespace poseidon
