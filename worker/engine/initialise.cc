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

// Values that feed one output: all dimensions but the first.
double fan_in(const Shape& shape) {
  return static_cast<double>(element_count(shape)) / static_cast<double>(shape.front());
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
  switch (parameter.initialiser.type) {
    case Initialiser::Type::kConstant:
      std::fill(values.begin(), values.end(), static_cast<float>(parameter.initialiser.value));
      break;
    case Initialiser::Type::kGaussian:
      normal(parameter.initialiser.std);
      break;
    case Initialiser::Type::kXavier:  // Glorot, Bengio 2010, in Caffe's form: fan-in alone
      uniform(std::sqrt(3.0 / fan_in(parameter.shape)));
      break;
    case Initialiser::Type::kHe:  // He et al.: "Delving Deep into Rectifiers", 2015
      normal(std::sqrt(2.0 / fan_in(parameter.shape)));
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
