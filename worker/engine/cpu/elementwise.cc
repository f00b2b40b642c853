// ReLU, sum and dropout: every output element depends only on its own input elements. All work in
// place (tensor_lifetimes.h): input and output pointers may be equal.

#include <algorithm>
#include <memory>
#include <string>

#include "worker/engine/cpu/loop_operators.h"
#include "worker/engine/cpu/parallel.h"
#include "worker/engine/cpu/vector_loops.h"
#include "worker/engine/dropout_mask.h"

namespace poseidon {
namespace {

std::int64_t batch_elements(const LayerSpec& layer, const OperatorOptions& options) {
  return options.batch_size * element_count(layer.output_shape);
}

class Relu final : public LayerOperator {
 public:
  explicit Relu(std::int64_t elements) : elements_(elements) {}

  absl::Status forward(const ForwardArgs& args) override {
    parallel_for(elements_, kGrainElements, [&](std::int64_t begin, std::int64_t end) {
      loops_.relu(args.inputs[0] + begin, args.output + begin, end - begin);
    });
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    float* const out = args.input_gradients[0];
    if (out == nullptr) return absl::OkStatus();
    parallel_for(elements_, kGrainElements, [&](std::int64_t begin, std::int64_t end) {
      // The output is positive exactly where the input was; NaN is positive in neither.
      loops_.relu_gradient(args.forward.output + begin, args.output_gradient + begin, out + begin,
                           end - begin);
    });
    return absl::OkStatus();
  }

 private:
  const std::int64_t elements_;
  const VectorLoops& loops_ = vector_loops();
};

class Add final : public LayerOperator {
 public:
  explicit Add(std::int64_t elements) : elements_(elements) {}

  absl::Status forward(const ForwardArgs& args) override {
    parallel_for(elements_, kGrainElements, [&](std::int64_t begin, std::int64_t end) {
      const float* sum = args.inputs[0];
      for (const float* input : args.inputs.subspan(1)) {
        loops_.sum(sum + begin, input + begin, args.output + begin, end - begin);
        sum = args.output;
      }
    });
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    for (float* const out : args.input_gradients) {
      if (out == nullptr || out == args.output_gradient) continue;
      parallel_for(elements_, kGrainElements, [&](std::int64_t begin, std::int64_t end) {
        std::copy(args.output_gradient + begin, args.output_gradient + end, out + begin);
      });
    }
    return absl::OkStatus();
  }

 private:
  const std::int64_t elements_;
  const VectorLoops& loops_ = vector_loops();
};

class Dropout final : public LayerOperator {
 public:
  Dropout(const LayerSpec& layer, const OperatorOptions& options)
      : layer_(layer.name),
        seed_(options.seed),
        samples_(options.batch_size),
        elements_(element_count(layer.output_shape)),
        ratio_(layer.dropout_ratio) {}

  absl::Status forward(const ForwardArgs& args) override {
    if (args.phase == Phase::kTest) {
      if (args.output != args.inputs[0]) {
        std::copy_n(args.inputs[0], samples_ * elements_, args.output);
      }
    } else {
      mask(args.first_sample, args.inputs[0], args.output);
    }
    return absl::OkStatus();
  }

  // The mask is drawn again instead of stored: drawing is cheap, storing a batch of masks is not.
  absl::Status backward(const BackwardArgs& args) override {
    if (args.input_gradients[0] != nullptr) {
      mask(args.forward.first_sample, args.output_gradient, args.input_gradients[0]);
    }
    return absl::OkStatus();
  }

 private:
  void mask(std::uint64_t first_sample, const float* in, float* out) const {
    parallel_for(samples_, std::max<std::int64_t>(1, kGrainElements / elements_),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const auto sample = first_sample + static_cast<std::uint64_t>(i);
                     apply_dropout(dropout_seed(seed_, layer_, sample), ratio_, elements_,
                                   in + i * elements_, out + i * elements_);
                   }
                 });
  }

  const std::string layer_;
  const std::uint64_t seed_;
  const std::int64_t samples_;
  const std::int64_t elements_;  // of one sample
  const double ratio_;
};

}  // namespace

std::unique_ptr<LayerOperator> make_relu(const LayerSpec& layer, const OperatorOptions& options) {
  return std::make_unique<Relu>(batch_elements(layer, options));
}

std::unique_ptr<LayerOperator> make_add(const LayerSpec& layer, const OperatorOptions& options) {
  return std::make_unique<Add>(batch_elements(layer, options));
}

std::unique_ptr<LayerOperator> make_dropout(const LayerSpec& layer,
                                            const OperatorOptions& options) {
  return std::make_unique<Dropout>(layer, options);
}

}  // namespace poseidon
