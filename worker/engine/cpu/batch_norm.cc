// Batch normalisation (Ioffe, Szegedy 2015, section 3) in loops of our own. oneDNN's splits the
// sums of a channel among the threads, so that its bits depend on their number; here a sample's
// plane is summed by one thread, in double, and the planes of a channel are added in sample order.

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "models/net/batch_norm_errors.h"
#include "worker/engine/cpu/channel_block.h"
#include "worker/engine/cpu/loop_operators.h"
#include "worker/engine/cpu/parallel.h"
#include "worker/engine/cpu/vector_loops.h"

namespace poseidon {
namespace {

constexpr std::int64_t kPlainLanes = 8;

// Two sums over one plane, or over one channel.
struct Sums {
  double first = 0.0, second = 0.0;
};

// A tensor is a row of groups: in Layout::kDevice the pixels of some channels side by side, in the
// plain layout one channel's plane, read as rows of kPlainLanes and a few elements more.
class BatchNorm final : public LayerOperator {
 public:
  BatchNorm(const LayerSpec& layer, const OperatorOptions& options)
      : layer_(layer),
        samples_(options.batch_size),
        channels_(layer.input_shape.front()),
        plane_(element_count(layer.input_shape) / channels_),
        lanes_(options.input_layout() == Layout::kDevice ? channel_block() : kPlainLanes),
        group_channels_(options.input_layout() == Layout::kDevice ? channel_block() : 1),
        rows_(plane_ * group_channels_ / lanes_),
        partial_first_(at(samples_ * channels_)),
        partial_second_(at(samples_ * channels_)),
        mean_(at(channels_)),
        inverse_(at(channels_)),
        a_(at(channels_)),
        b_(at(channels_)),
        c_(at(channels_)),
        d_(at(channels_)) {}

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
      a_[at(c)] = static_cast<float>(mean);
      b_[at(c)] = static_cast<float>(args.parameters[c] * inverse);
      c_[at(c)] = args.parameters[channels_ + c];
    }
    for_groups(samples_, [&](std::int64_t offset, std::int64_t /*sample*/, std::int64_t c) {
      const float* x = args.inputs[0] + offset;
      float* out = args.output + offset;
      if (group_channels_ > 1) {
        loops_.normalise({&a_[at(c)], &b_[at(c)], &c_[at(c)]}, x, rows_, lanes_, out);
        return;
      }
      const float mean = a_[at(c)], scale = b_[at(c)], shift = c_[at(c)];
      const Lanes means(mean), scales(scale), shifts(shift);
      loops_.normalise({means.data, scales.data, shifts.data}, x, rows_, lanes_, out);
      for (std::int64_t i = rows_ * lanes_; i < plane_; ++i) {
        out[i] = (x[i] - mean) * scale + shift;
      }
    });
    return absl::OkStatus();
  }

  // With x^ = (x - mean) / deviation: d weight = sum dy x^, d bias = sum dy,
  // dx = weight / deviation * (dy - d bias / m - x^ d weight / m).
  absl::Status backward(const BackwardArgs& args) override {
    const std::int64_t valid = args.forward.valid_samples;
    take_gradient_moments(args);
    const auto count = static_cast<double>(valid * plane_);
    for (std::int64_t c = 0; c < channels_; ++c) {
      const Sums sums = channel_sums(valid, c);
      const double inverse = inverse_[at(c)];
      args.parameter_gradients[c] = static_cast<float>(sums.second * inverse);
      args.parameter_gradients[channels_ + c] = static_cast<float>(sums.first);
      const double scale = args.forward.parameters[c] * inverse;
      a_[at(c)] = static_cast<float>(mean_[at(c)]);
      b_[at(c)] = static_cast<float>(scale);
      c_[at(c)] = static_cast<float>(-scale * inverse * inverse * sums.second / count);
      d_[at(c)] = static_cast<float>(-scale * sums.first / count);
    }
    if (args.input_gradients[0] != nullptr) spread_gradient(args);
    return absl::OkStatus();
  }

 private:
  // One channel's factor for every lane of a plain row.
  struct Lanes {
    explicit Lanes(float value) { std::fill_n(data, kPlainLanes, value); }
    float data[kPlainLanes];
  };

  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  double inverse_deviation(double variance) const {
    return 1.0 / std::sqrt(variance + layer_.epsilon);
  }

  // body(offset of the group, its sample, its first channel), each group once, in any order.
  template <typename Body>
  void for_groups(std::int64_t samples, const Body& body) const {
    const std::int64_t groups = channels_ / group_channels_;
    const std::int64_t elements = plane_ * group_channels_;
    parallel_for(samples * groups, std::max<std::int64_t>(1, kGrainElements / elements),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     body(i * elements, i / groups, i % groups * group_channels_);
                   }
                 });
  }

  // Both sums of a group: `loop` adds those of whole rows, lane by lane, to where it is told,
  // `rest` those of element i.
  template <typename Loop, typename Rest>
  void store_partial(std::int64_t sample, std::int64_t c, const Loop& loop, const Rest& rest) {
    const std::size_t place = at(sample * channels_ + c);
    if (group_channels_ > 1) {
      std::fill_n(&partial_first_[place], lanes_, 0.0);
      std::fill_n(&partial_second_[place], lanes_, 0.0);
      loop(&partial_first_[place], &partial_second_[place]);
      return;
    }
    std::array<double, kPlainLanes> first{}, second{};
    loop(first.data(), second.data());
    for (std::int64_t i = rows_ * lanes_; i < plane_; ++i) {
      const Sums sums = rest(i);
      first[at(i % lanes_)] += sums.first;
      second[at(i % lanes_)] += sums.second;
    }
    partial_first_[place] = std::accumulate(first.begin(), first.end(), 0.0);
    partial_second_[place] = std::accumulate(second.begin(), second.end(), 0.0);
  }

  Sums channel_sums(std::int64_t samples, std::int64_t c) const {
    Sums sums;
    for (std::int64_t n = 0; n < samples; ++n) {
      sums.first += partial_first_[at(n * channels_ + c)];
      sums.second += partial_second_[at(n * channels_ + c)];
    }
    return sums;
  }

  // Mean and deviation of each channel's valid values; moves the running statistics. Squares of
  // float are exact in double, so the difference of the two sums loses nothing that float32 shows
  // unless the mean is a million deviations.
  void take_moments(const ForwardArgs& args) {
    for_groups(args.valid_samples, [&](std::int64_t offset, std::int64_t sample,
                                       std::int64_t channel) {
      const float* x = args.inputs[0] + offset;
      store_partial(
          sample, channel,
          [&](double* first, double* second) { loops_.moments(x, rows_, lanes_, first, second); },
          [&](std::int64_t i) -> Sums {
            return {x[i], static_cast<double>(x[i]) * x[i]};
          });
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

  void take_gradient_moments(const BackwardArgs& args) {
    for_groups(args.forward.valid_samples, [&](std::int64_t offset, std::int64_t sample,
                                               std::int64_t channel) {
      const float* x = args.forward.inputs[0] + offset;
      const float* dy = args.output_gradient + offset;
      const double mean = mean_[at(channel)];
      std::array<double, kPlainLanes> means;
      means.fill(mean);
      const double* const lane_means = group_channels_ > 1 ? &mean_[at(channel)] : means.data();
      store_partial(
          sample, channel,
          [&](double* first, double* second) {
            loops_.gradient_moments(x, dy, lane_means, rows_, lanes_, first, second);
          },
          [&](std::int64_t i) -> Sums {
            return {dy[i], dy[i] * (x[i] - mean)};
          });
    });
  }

  void spread_gradient(const BackwardArgs& args) const {
    const std::int64_t valid = args.forward.valid_samples;
    float* const out = args.input_gradients[0];
    for_groups(valid, [&](std::int64_t offset, std::int64_t /*sample*/, std::int64_t channel) {
      const float* x = args.forward.inputs[0] + offset;
      const float* dy = args.output_gradient + offset;
      float* dx = out + offset;
      const std::size_t c = at(channel);
      if (group_channels_ > 1) {
        loops_.normalise_gradient({&a_[c], &b_[c], &c_[c], &d_[c]}, x, dy, rows_, lanes_, dx);
        return;
      }
      const Lanes mean(a_[c]), of_gradient(b_[c]), of_input(c_[c]), constant(d_[c]);
      loops_.normalise_gradient({mean.data, of_gradient.data, of_input.data, constant.data}, x, dy,
                                rows_, lanes_, dx);
      for (std::int64_t i = rows_ * lanes_; i < plane_; ++i) {
        dx[i] = b_[c] * dy[i] + (c_[c] * (x[i] - a_[c]) + d_[c]);
      }
    });
    const std::int64_t sample = channels_ * plane_;
    std::fill(out + valid * sample, out + samples_ * sample, 0.0f);
  }

  const LayerSpec layer_;
  const VectorLoops& loops_ = vector_loops();
  const std::int64_t samples_, channels_, plane_;
  const std::int64_t lanes_, group_channels_, rows_;
  std::vector<double> partial_first_, partial_second_;  // per sample and channel
  std::vector<double> mean_, inverse_;  // per channel, of the last forward in training
  std::vector<float> a_, b_, c_, d_;    // per channel: what one pass over the values computes with
};

}  // namespace

std::unique_ptr<LayerOperator> make_batch_norm(const LayerSpec& layer,
                                               const OperatorOptions& options) {
  return std::make_unique<BatchNorm>(layer, options);
}

}  // namespace poseidon
