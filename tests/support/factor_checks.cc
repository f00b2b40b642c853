#include "tests/support/factor_checks.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/layer_harness.h"

namespace poseidon::testing {

std::string FactorProblem::name() const {
  return absl::StrCat(outputs, " x ", inputs, " from ", rows, " rows");
}

std::vector<FactorProblem> factor_problems() {
  OptimizerSpec sgd, momentum, adamw;
  momentum.momentum = 0.9;
  momentum.weight_decay = 0.0005;
  adamw.type = OptimizerType::kAdamW;
  adamw.weight_decay = 0.01;
  return {
      {1, 1, 1, true, sgd},          {1, 1, 1, false, momentum},      {7, 3, 5, true, momentum},
      {64, 10, 500, true, momentum}, {33, 129, 1025, true, momentum}, {96, 300, 2100, false, sgd},
      {12, 257, 40, true, adamw},    {48, 1, 3000, true, sgd}};
}

namespace {

/// In the memory of a device.
class OnDevice {
 public:
  OnDevice(Device& device, const std::vector<float>& values) : device_(device) {
    if (values.empty()) return;
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
    auto memory = device.allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    size_ = values.size();
    EXPECT_TRUE(device.upload(memory_.get(), values.data(), bytes).ok());
  }
  std::span<float> values() const { return {static_cast<float*>(memory_.get()), size_}; }
  std::vector<float> read() const {
    std::vector<float> values(size_);
    if (values.empty()) return values;
    EXPECT_TRUE(device_
                    .download(values.data(), memory_.get(),
                              static_cast<std::int64_t>(size_ * sizeof(float)))
                    .ok());
    return values;
  }

 private:
  Device& device_;
  DeviceMemory memory_{nullptr, nullptr};
  std::size_t size_ = 0;
};

}  // namespace

FactorResult step_twice(Device& device, const FactorProblem& p) {
  const std::int64_t count = p.outputs * p.inputs + (p.has_bias ? p.outputs : 0);
  const int slots = optimizer_state_slots(p.optimizer);
  const auto zeros = [](std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); };
  const OnDevice parameters(device, values(1, count));
  const OnDevice state0(device, zeros(slots > 0 ? count : 0));
  const OnDevice state1(device, zeros(slots > 1 ? count : 0));
  for (std::uint64_t i = 0; i < 2; ++i) {
    const std::vector<float> gradients = values(10 + i, p.rows * p.outputs);
    const std::vector<float> inputs = values(20 + i, p.rows * p.inputs);
    FactorStepArgs args;
    args.rows = p.rows;
    args.outputs = p.outputs;
    args.inputs = p.inputs;
    args.has_bias = p.has_bias;
    args.output_gradients = gradients.data();
    args.input_values = inputs.data();
    // The bias goes its own way, so that neither gets the other's step.
    args.weight_step = make_optimizer_step(p.optimizer, static_cast<Iteration>(i), 0.25f);
    args.bias_step = make_optimizer_step(p.optimizer, static_cast<Iteration>(i), 0.25f,
                                         {.learning_rate = 2.0, .weight_decay = 0.0});
    args.parameters = parameters.values();
    args.state0 = state0.values();
    args.state1 = state1.values();
    const absl::Status status = device.step_from_factors(args);
    EXPECT_TRUE(status.ok()) << status;
  }
  return {parameters.read(), state0.read(), state1.read()};
}

double factor_tolerance(const FactorProblem& p) {
  // Sums of `rows` products below 1, scaled by 1/4; Adam divides by a small number again.
  const double scale = p.optimizer.type == OptimizerType::kSgd ? 1.0 : 100.0;
  return 8.0 * scale * static_cast<double>(p.rows + 4) * kFloatEpsilon;
}

FactorSquares measure_first(Device& device, const FactorProblem& p) {
  const std::vector<float> gradients = values(10, p.rows * p.outputs);
  const std::vector<float> inputs = values(20, p.rows * p.inputs);
  FactorStepArgs args;
  args.rows = p.rows;
  args.outputs = p.outputs;
  args.inputs = p.inputs;
  args.has_bias = p.has_bias;
  args.output_gradients = gradients.data();
  args.input_values = inputs.data();
  const auto squares = device.measure_factors(args);
  EXPECT_TRUE(squares.ok()) << squares.status();
  return squares.ok() ? *squares : FactorSquares{};
}

double measure_values(Device& device, const std::vector<float>& values) {
  const OnDevice memory(device, values);
  const auto sum =
      device.square_sum(memory.values().data(), static_cast<std::int64_t>(values.size()));
  EXPECT_TRUE(sum.ok()) << sum.status();
  return sum.ok() ? *sum : 0.0;
}

double square_tolerance(const FactorProblem& p) {
  // An element of the product has `rows` roundings of 2^-24 of its terms' magnitude, a square
  // twice as many; terms do not all have one sign, so the elements may be smaller than they.
  return 4.0 * static_cast<double>(p.rows + 2) * 0x1p-24;
}

}  // namespace poseidon::testing
