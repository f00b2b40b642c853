// Kernels that go channel by channel: batch normalisation, biases. Sums are in double and split
// into parts; their number depends only on the sizes.

#include <type_traits>

#include "worker/engine/cuda/kernels/channel_walk.cuh"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/kernels/launch.cuh"

namespace poseidon::cuda {
namespace {

template <typename Form>
__global__ void add_bias_kernel(Images images, Epilogue epilogue, typename Form::Element* values) {
  Form::walk(images, [=](std::int64_t c) {
    const auto addend = Form::of_channels(epilogue.bias, c);
    return [=](std::int64_t i, bool) {
      auto value = Form::load_at(values, i);
      for (int k = 0; k < Form::kWide; ++k) {
        value.at[k] += addend.at[k];
        if (epilogue.relu) value.at[k] = positive_part(value.at[k]);
      }
      Form::store_at(values, i, value);
    };
  });
}

// Rows of a vector: neighbours have different biases.
__global__ void add_row_bias_kernel(Epilogue epilogue, float* values, std::int64_t size,
                                    std::int64_t columns) {
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    const float value = values[i] + epilogue.bias[i % columns];
    values[i] = epilogue.relu ? positive_part(value) : value;
  }
}

template <typename Form>
__global__ void plain_part_kernel(Images images, std::int64_t parts,
                                  const typename Form::Element* in, double* partial) {
  Form::sum_parts(images, parts, partial,
                  [in](std::int64_t i, std::int64_t, typename Form::Sums& sums) {
                    const auto value = Form::load_at(in, i);
                    for (int k = 0; k < Form::kWide; ++k) sums.first[k] += value.at[k];
                  });
}

__global__ void plain_whole_kernel(std::int64_t channels, std::int64_t parts, const double* partial,
                                   float* out) {
  whole_sums(channels, parts, partial, [=](std::int64_t c, const WholeSums& sums) {
    out[c] = static_cast<float>(sums.first);
  });
}

// ---- batch normalisation (Ioffe, Szegedy 2015, section 3) ----

// Squares of float are exact in double, so the difference of the two sums loses nothing that
// float32 shows unless the mean is a million deviations.
template <typename Form>
__global__ void moments_kernel(Images images, std::int64_t parts, const typename Form::Element* in,
                               double* partial) {
  Form::sum_parts(images, parts, partial,
                  [in](std::int64_t i, std::int64_t, typename Form::Sums& sums) {
                    const auto values = Form::load_at(in, i);
                    for (int k = 0; k < Form::kWide; ++k) {
                      const double value = values.at[k];
                      sums.first[k] += value;
                      sums.second[k] += value * value;
                    }
                  });
}

__device__ void follow(float& running, double momentum, double batch) {
  running = static_cast<float>((1.0 - momentum) * running + momentum * batch);
}

__device__ double inverse_deviation(double variance, double epsilon) {
  return 1.0 / sqrt(variance + epsilon);
}

__global__ void statistics_kernel(Images images, std::int64_t parts, BatchNormRule rule,
                                  const double* partial, const float* parameters, float* statistics,
                                  BatchNormState state) {
  const std::int64_t channels = images.channels;
  const auto count = static_cast<double>(images.valid * images.plane);
  whole_sums(channels, parts, partial, [=](std::int64_t c, const WholeSums& sums) {
    const double mean = sums.first / count;
    const double difference = sums.second / count - mean * mean;
    const double variance = difference < 0.0 ? 0.0 : difference;  // a NaN stays one
    const double inverse = inverse_deviation(variance, rule.epsilon);
    state.mean[c] = mean;
    state.inverse[c] = inverse;
    follow(statistics[c], rule.momentum, mean);
    follow(statistics[channels + c], rule.momentum, variance * count / (count - 1.0));
    state.factors[c] = static_cast<float>(mean);
    state.factors[channels + c] = static_cast<float>(parameters[c] * inverse);
    state.factors[2 * channels + c] = parameters[channels + c];
  });
}

__global__ void running_factors_kernel(std::int64_t channels, double epsilon,
                                       const float* parameters, const float* statistics,
                                       float* factors) {
  for (std::int64_t c = first_item(); c < channels; c += item_stride()) {
    factors[c] = statistics[c];
    factors[channels + c] =
        static_cast<float>(parameters[c] * inverse_deviation(statistics[channels + c], epsilon));
    factors[2 * channels + c] = parameters[channels + c];
  }
}

/// What values of some channels become in forward.
template <typename Form, bool kRelu>
struct Normalisation {
  using Values = typename Form::Values;
  Values mean, scale, shift;

  __device__ Normalisation(const float* factors, std::int64_t channels, std::int64_t c)
      : mean(Form::of_channels(factors, c)),
        scale(Form::of_channels(factors + channels, c)),
        shift(Form::of_channels(factors + 2 * channels, c)) {}

  __device__ float at(int k, float value) const {
    return (value - mean.at[k]) * scale.at[k] + shift.at[k];
  }
  __device__ void apply(Values& values) const {
    for (int k = 0; k < Form::kWide; ++k) {
      const float value = at(k, values.at[k]);
      values.at[k] = kRelu ? positive_part(value) : value;
    }
  }
  /// The ReLU's backward, which looks at the output as it was kept: it is found again.
  __device__ void cut(const Values& in, Values& gradient) const {
    if constexpr (kRelu) {
      for (int k = 0; k < Form::kWide; ++k) {
        if (kept_as<typename Form::Element>(at(k, in.at[k])) <= 0.0f) gradient.at[k] = 0.0f;
      }
    }
  }
};

template <typename Form, bool kRelu>
__global__ void normalise_kernel(Images images, const typename Form::Element* in,
                                 const float* factors, typename Form::Element* out) {
  const std::int64_t channels = images.channels;
  Form::walk(images, [=](std::int64_t c) {
    const Normalisation<Form, kRelu> normalisation(factors, channels, c);
    return [=](std::int64_t i, bool) {
      auto values = Form::load_at(in, i);
      normalisation.apply(values);
      Form::store_at(out, i, values);
    };
  });
}

template <typename Form, bool kRelu>
__global__ void gradient_moments_kernel(Images images, std::int64_t parts,
                                        const typename Form::Element* in,
                                        const typename Form::Element* gradient,
                                        const float* factors, const double* mean, double* partial) {
  const std::int64_t channels = images.channels;
  Form::sum_parts(images, parts, partial,
                  [=](std::int64_t i, std::int64_t c, typename Form::Sums& sums) {
                    const auto value = Form::load_at(in, i);
                    auto slope = Form::load_at(gradient, i);
                    Normalisation<Form, kRelu>(factors, channels, c).cut(value, slope);
                    for (int k = 0; k < Form::kWide; ++k) {
                      const double dy = slope.at[k];
                      sums.first[k] += dy;
                      sums.second[k] += dy * (value.at[k] - mean[c + k]);
                    }
                  });
}

// With x^ = (x - mean) / deviation: d weight = sum dy x^, d bias = sum dy,
// dx = weight / deviation * (dy - d bias / m - x^ d weight / m). The factor of dy is forward's
// scale.
__global__ void gradient_factors_kernel(Images images, std::int64_t parts, const double* partial,
                                        const float* parameters, BatchNormState state,
                                        float* parameter_gradients) {
  const std::int64_t channels = images.channels;
  const auto count = static_cast<double>(images.valid * images.plane);
  whole_sums(channels, parts, partial, [=](std::int64_t c, const WholeSums& sums) {
    const double inverse = state.inverse[c];
    parameter_gradients[c] = static_cast<float>(sums.second * inverse);
    parameter_gradients[channels + c] = static_cast<float>(sums.first);
    const double scale = parameters[c] * inverse;
    state.factors[3 * channels + c] =
        static_cast<float>(-scale * inverse * inverse * sums.second / count);
    state.factors[4 * channels + c] = static_cast<float>(-scale * sums.first / count);
  });
}

template <typename Form, bool kRelu>
__global__ void normalise_gradient_kernel(Images images, const typename Form::Element* in,
                                          const typename Form::Element* gradient,
                                          const float* factors,
                                          typename Form::Element* in_gradient) {
  const std::int64_t channels = images.channels;
  Form::walk(images, [=](std::int64_t c) {
    const Normalisation<Form, kRelu> forward(factors, channels, c);
    const auto of_input = Form::of_channels(factors + 3 * channels, c);
    const auto constant = Form::of_channels(factors + 4 * channels, c);
    return [=](std::int64_t i, bool counts) {
      const auto x = Form::load_at(in, i);
      auto dy = Form::load_at(gradient, i);
      forward.cut(x, dy);
      typename Form::Values dx;
      for (int k = 0; k < Form::kWide; ++k) {
        const float value = forward.scale.at[k] * dy.at[k] +
                            (of_input.at[k] * (x.at[k] - forward.mean.at[k]) + constant.at[k]);
        dx.at[k] = counts ? value : 0.0f;
      }
      Form::store_at(in_gradient, i, dx);
    };
  });
}

// ---- launches ----

/// A kernel that sums parts, with what it takes between the parts' number and their place.
template <typename Form, typename... Parameters, typename... Arguments>
void launch_sums(cudaStream_t stream, const Images& images, void (*kernel)(Parameters...),
                 Arguments... arguments) {
  launch(stream, Form::sum_blocks(images), Form::threads(images), kernel, images,
         Form::parts(images), arguments...);
}

template <typename Form, typename... Parameters, typename... Arguments>
void launch_walk(cudaStream_t stream, const Images& images, void (*kernel)(Parameters...),
                 Arguments... arguments) {
  launch(stream, Form::walk_blocks(images), Form::threads(images), kernel, images, arguments...);
}

/// call(std::bool_constant) of whether.
template <typename Call>
void of_relu(bool relu, const Call& call) {
  if (relu) {
    call(std::true_type());
  } else {
    call(std::false_type());
  }
}

template <typename Form>
void launch_normalise(cudaStream_t stream, const Images& images, bool relu, const float* in,
                      const float* factors, float* out) {
  using Element = typename Form::Element;
  of_relu(relu, [&](auto with_relu) {
    launch_walk<Form>(stream, images, normalise_kernel<Form, decltype(with_relu)::value>,
                      elements<Element>(in), factors, elements<Element>(out));
  });
}

}  // namespace

std::size_t channel_sums_scratch(const Images& images) {
  std::int64_t parts = 0;
  of_form(images, [&](auto form) { parts = decltype(form)::parts(images); });
  return static_cast<std::size_t>(2 * parts * images.channels);
}

void add_bias(cudaStream_t stream, const Images& images, const Epilogue& epilogue, float* values) {
  if (images.plane == 1 && images.layout == Layout::kPlain) {
    const std::int64_t size = images.samples * images.channels;
    launch(stream, blocks_for(size), kThreads, add_row_bias_kernel, epilogue, values, size,
           images.channels);
    return;
  }
  of_form(images, [&](auto form) {
    using Form = decltype(form);
    using Element = typename Form::Element;
    launch_walk<Form>(stream, images, add_bias_kernel<Form>, epilogue, elements<Element>(values));
  });
}

void channel_sums(cudaStream_t stream, const Images& images, const float* gradient, double* scratch,
                  float* bias_gradient) {
  of_form(images, [&](auto form) {
    using Form = decltype(form);
    using Element = typename Form::Element;
    launch_sums<Form>(stream, images, plain_part_kernel<Form>, elements<Element>(gradient),
                      scratch);
    launch(stream, whole_blocks(images), kThreads, plain_whole_kernel, images.channels,
           Form::parts(images), scratch, bias_gradient);
  });
}

void batch_norm(cudaStream_t stream, const Images& images, const BatchNormRule& rule,
                const float* in, const float* parameters, float* statistics, double* scratch,
                const BatchNormState& state, float* out) {
  of_form(images, [&](auto form) {
    using Form = decltype(form);
    using Element = typename Form::Element;
    launch_sums<Form>(stream, images, moments_kernel<Form>, elements<Element>(in), scratch);
    launch(stream, whole_blocks(images), kThreads, statistics_kernel, images, Form::parts(images),
           rule, scratch, parameters, statistics, state);
    launch_normalise<Form>(stream, images, rule.relu, in, state.factors, out);
  });
}

void batch_norm_test(cudaStream_t stream, const Images& images, const BatchNormRule& rule,
                     const float* in, const float* parameters, const float* statistics,
                     const BatchNormState& state, float* out) {
  launch(stream, blocks_for(images.channels), kThreads, running_factors_kernel, images.channels,
         rule.epsilon, parameters, statistics, state.factors);
  of_form(images, [&](auto form) {
    launch_normalise<decltype(form)>(stream, images, rule.relu, in, state.factors, out);
  });
}

void batch_norm_gradient(cudaStream_t stream, const Images& images, const BatchNormRule& rule,
                         const float* in, const float* gradient, const float* parameters,
                         double* scratch, const BatchNormState& state, float* parameter_gradients,
                         float* in_gradient) {
  of_form(images, [&](auto form) {
    using Form = decltype(form);
    using Element = typename Form::Element;
    of_relu(rule.relu, [&](auto with_relu) {
      constexpr bool kRelu = decltype(with_relu)::value;
      launch_sums<Form>(stream, images, gradient_moments_kernel<Form, kRelu>, elements<Element>(in),
                        elements<Element>(gradient), state.factors, state.mean, scratch);
      launch(stream, whole_blocks(images), kThreads, gradient_factors_kernel, images,
             Form::parts(images), scratch, parameters, state, parameter_gradients);
      if (in_gradient == nullptr) return;
      launch_walk<Form>(stream, images, normalise_gradient_kernel<Form, kRelu>,
                        elements<Element>(in), elements<Element>(gradient), state.factors,
                        elements<Element>(in_gradient));
    });
  });
}

}  // namespace poseidon::cuda
