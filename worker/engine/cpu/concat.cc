// Concatenation along the channels: one copy per sample and input.

#include <algorithm>
#include <memory>
#include <vector>

#include "worker/engine/cpu/loop_operators.h"
#include "worker/engine/cpu/parallel.h"

namespace poseidon {
namespace {

class Concat final : public LayerOperator {
 public:
  Concat(const LayerSpec& layer, const OperatorOptions& options)
      : samples_(options.batch_size), outputs_(element_count(layer.output_shape)) {
    const std::int64_t plane = outputs_ / layer.output_shape.front();
    std::int64_t begin = 0;
    for (const std::int64_t channels : layer.concat_channels) {
      parts_.push_back({begin, channels * plane});
      begin += channels * plane;
    }
  }

  absl::Status forward(const ForwardArgs& args) override {
    for_parts([&](std::size_t input, std::int64_t in, std::int64_t out, std::int64_t size) {
      std::copy_n(args.inputs[input] + in, size, args.output + out);
    });
    return absl::OkStatus();
  }

  absl::Status backward(const BackwardArgs& args) override {
    for_parts([&](std::size_t input, std::int64_t in, std::int64_t out, std::int64_t size) {
      float* const target = args.input_gradients[input];
      if (target != nullptr) std::copy_n(args.output_gradient + out, size, target + in);
    });
    return absl::OkStatus();
  }

 private:
  // Of one sample: where an input's elements begin in the output, and how many there are.
  struct Part {
    std::int64_t begin, size;
  };

  // body(input, offset in that input, offset in the output, elements)
  template <typename Body>
  void for_parts(const Body& body) const {
    parallel_for(samples_, std::max<std::int64_t>(1, kGrainElements / outputs_),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t n = begin; n < end; ++n) {
                     for (std::size_t i = 0; i < parts_.size(); ++i) {
                       body(i, n * parts_[i].size, n * outputs_ + parts_[i].begin, parts_[i].size);
                     }
                   }
                 });
  }

  const std::int64_t samples_, outputs_;  // outputs of one sample
  std::vector<Part> parts_;               // per input
};

}  // namespace

std::unique_ptr<LayerOperator> make_concat(const LayerSpec& layer, const OperatorOptions& options) {
  return std::make_unique<Concat>(layer, options);
}

}  // namespace poseidon
