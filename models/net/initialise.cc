#include "models/net/initialise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"

namespace poseidon {
namespace {

/// Values beyond this many deviations are drawn again: about one of 22.
constexpr double kTruncation = 2.0;

// Caffe's and PyTorch's rule (both count a group's own inputs, but all groups' outputs): fan-in is
// what feeds one output, fan-out what one input feeds.
double fan_of(const Initialiser& initialiser, const Shape& shape) {
  const auto count = static_cast<double>(element_count(shape));
  const double in = count / static_cast<double>(shape.front());
  const double out = shape.size() < 2 ? count : count / static_cast<double>(shape[1]);
  switch (initialiser.fan) {
    case Initialiser::Fan::kIn:
      return in;
    case Initialiser::Fan::kOut:
      return out;
    case Initialiser::Fan::kAverage:
      break;
  }
  return (in + out) / 2.0;
}

void fill_constant(float value, std::span<float> values, const RangeRunner& run) {
  run(static_cast<std::int64_t>(values.size()), [&](std::int64_t begin, std::int64_t end) {
    std::fill(values.begin() + begin, values.begin() + end, value);
  });
}

// Value i is made of draw i, or of as many as it takes from there on: the same whatever the ranges.
void fill_uniform(std::uint64_t seed, double bound, std::span<float> values,
                  const RangeRunner& run) {
  run(static_cast<std::int64_t>(values.size()), [&](std::int64_t begin, std::int64_t end) {
    SplitMix64 random(seed);
    random.skip(static_cast<std::uint64_t>(begin));
    for (std::int64_t i = begin; i < end; ++i) {
      const double draw = 2.0 * static_cast<double>(random.uniform()) - 1.0;
      values[static_cast<std::size_t>(i)] = static_cast<float>(draw * bound);
    }
  });
}

// Values beyond `limit` deviations are drawn anew, from a sequence of their own.
void fill_normal(std::uint64_t seed, double deviation, double limit, std::span<float> values,
                 const RangeRunner& run) {
  run(static_cast<std::int64_t>(values.size()), [&](std::int64_t begin, std::int64_t end) {
    SplitMix64 random(seed);
    random.skip(SplitMix64::kDrawsPerNormal * static_cast<std::uint64_t>(begin));
    for (std::int64_t i = begin; i < end; ++i) {
      double draw = random.normal();
      if (std::abs(draw) > limit) {
        SplitMix64 again(mix_seed(seed, static_cast<std::uint64_t>(i)));
        while (std::abs(draw) > limit) draw = again.normal();
      }
      values[static_cast<std::size_t>(i)] = static_cast<float>(draw * deviation);
    }
  });
}

void fill(const ParameterSpec& parameter, std::uint64_t seed, std::span<float> values,
          const RangeRunner& run) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  const Initialiser& initialiser = parameter.initialiser;
  switch (initialiser.type) {
    case Initialiser::Type::kConstant:
      fill_constant(static_cast<float>(initialiser.value), values, run);
      break;
    case Initialiser::Type::kUniform:
      fill_uniform(seed, initialiser.bound, values, run);
      break;
    case Initialiser::Type::kGaussian:
      fill_normal(seed, initialiser.std, kNoLimit, values, run);
      break;
    case Initialiser::Type::kTruncatedGaussian:
      fill_normal(seed, initialiser.std, kTruncation, values, run);
      break;
    case Initialiser::Type::kXavier:  // Glorot, Bengio 2010; fan-in alone is Caffe's form
      fill_uniform(seed, std::sqrt(3.0 / fan_of(initialiser, parameter.shape)), values, run);
      break;
    case Initialiser::Type::kHe:  // He et al.: "Delving Deep into Rectifiers", 2015
      fill_normal(seed, std::sqrt(2.0 / fan_of(initialiser, parameter.shape)), kNoLimit, values,
                  run);
      break;
  }
}

}  // namespace

void run_here(std::int64_t items, const std::function<void(std::int64_t, std::int64_t)>& body) {
  body(0, items);
}

RangeRunner until_stopped(RangeRunner run, std::int64_t piece, std::function<bool()> stopped) {
  return [run = std::move(run), piece, stopped = std::move(stopped)](std::int64_t items,
                                                                     const auto& body) {
    for (std::int64_t at = 0; at < items && !stopped(); at += piece) {
      run(std::min(piece, items - at),
          [&body, at](std::int64_t begin, std::int64_t end) { body(at + begin, at + end); });
    }
  };
}

void initialise_parameters(const NetSpec& net, std::uint64_t seed,
                           const std::function<std::span<float>(LayerIndex)>& parameters,
                           const RangeRunner& run) {
  LayerIndex index;
  for (const std::size_t i : net.parameter_layers()) {
    const LayerSpec& layer = net.layers[i];
    std::span<float> values = parameters(index);
    POSEIDON_CHECK(static_cast<std::int64_t>(values.size()) == layer.parameter_count(),
                   layer.name.c_str());
    for (const ParameterSpec& parameter : layer.parameters) {
      const auto count = static_cast<std::size_t>(element_count(parameter.shape));
      const std::uint64_t name_hash = fnv1a_64(absl::StrCat(layer.name, ".", parameter.name));
      fill(parameter, mix_seed(seed, name_hash), values.first(count), run);
      values = values.subspan(count);
    }
    index = index.next();
  }
}

}  // namespace poseidon
