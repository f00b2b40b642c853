#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/random.h"
#include "worker/engine/executor.h"
#include "worker/engine/fnv.h"

namespace poseidon {
namespace {

/// Values beyond so many deviations are drawn anew: of 22 about one.
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

void fill(const ParameterSpec& parameter, std::uint64_t seed, std::span<float> values) {
  SplitMix64 random(seed);
  const auto uniform = [&](double bound) {
    for (float& value : values) {
      value = static_cast<float>((2.0 * static_cast<double>(random.uniform()) - 1.0) * bound);
    }
  };
  const auto normal = [&](double deviation) {
    for (float& value : values) value = static_cast<float>(random.normal() * deviation);
  };
  const Initialiser& initialiser = parameter.initialiser;
  switch (initialiser.type) {
    case Initialiser::Type::kConstant:
      std::fill(values.begin(), values.end(), static_cast<float>(initialiser.value));
      break;
    case Initialiser::Type::kUniform:
      uniform(initialiser.bound);
      break;
    case Initialiser::Type::kGaussian:
      normal(initialiser.std);
      break;
    case Initialiser::Type::kTruncatedGaussian:
      for (float& value : values) {
        double draw = random.normal();
        while (std::abs(draw) > kTruncation) draw = random.normal();
        value = static_cast<float>(draw * initialiser.std);
      }
      break;
    case Initialiser::Type::kXavier:  // Glorot, Bengio 2010; fan-in alone is Caffe's form
      uniform(std::sqrt(3.0 / fan_of(initialiser, parameter.shape)));
      break;
    case Initialiser::Type::kHe:  // He et al.: "Delving Deep into Rectifiers", 2015
      normal(std::sqrt(2.0 / fan_of(initialiser, parameter.shape)));
      break;
  }
}

}  // namespace

void initialise_parameters(const NetSpec& net, std::uint64_t seed,
                           const std::function<std::span<float>(LayerIndex)>& parameters) {
  LayerIndex index;
  for (const std::size_t i : net.parameter_layers()) {
    const LayerSpec& layer = net.layers[i];
    std::span<float> values = parameters(index);
    POSEIDON_CHECK(static_cast<std::int64_t>(values.size()) == layer.parameter_count(),
                   layer.name.c_str());
    for (const ParameterSpec& parameter : layer.parameters) {
      const auto count = static_cast<std::size_t>(element_count(parameter.shape));
      const std::uint64_t name_hash = fnv1a_64(absl::StrCat(layer.name, ".", parameter.name));
      fill(parameter, mix_seed(seed, name_hash), values.first(count));
      values = values.subspan(count);
    }
    index = index.next();
  }
}

}  // namespace poseidon
