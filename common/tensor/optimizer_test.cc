#include "common/tensor/optimizer.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::optimizer_test {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

OptimizerSpec spec_of(const Json& json) {
  OptimizerSpec spec;
  const std::string type = json.at("type");
  spec.type = type == "sgd"    ? OptimizerType::kSgd
              : type == "adam" ? OptimizerType::kAdam
              : type == "lars" ? OptimizerType::kLars
                               : OptimizerType::kAdamW;
  spec.learning_rate = json.at("learning_rate");
  spec.momentum = json.value("momentum", spec.momentum);
  spec.nesterov = json.value("nesterov", spec.nesterov);
  spec.weight_decay = json.value("weight_decay", spec.weight_decay);
  spec.beta1 = json.value("beta1", spec.beta1);
  spec.beta2 = json.value("beta2", spec.beta2);
  spec.epsilon = json.value("epsilon", spec.epsilon);
  spec.trust_coefficient = json.value("trust_coefficient", spec.trust_coefficient);
  spec.clip_norm = json.value("clip_norm", spec.clip_norm);
  return spec;
}

/// Every kind of step that there is.
std::vector<OptimizerSpec> all_kinds() {
  std::vector<OptimizerSpec> specs(5);
  specs[1].momentum = 0.9;
  specs[2].momentum = 0.9;
  specs[2].nesterov = true;
  specs[3].type = OptimizerType::kAdam;
  specs[4].type = OptimizerType::kAdamW;
  for (OptimizerSpec& spec : specs) spec.weight_decay = 0.01;
  return specs;
}

TEST(Optimizer, FollowsPyTorch) {
  std::ifstream file("tests/golden/optimizer/optimizer.json");
  const Json golden = Json::parse(file);
  const auto start = golden.at("start").get<std::vector<float>>();
  ASSERT_EQ(golden.at("cases").size(), 8u);
  for (const Json& json : golden.at("cases")) {
    SCOPED_TRACE(json.at("name"));
    OptimizerSpec spec = spec_of(json);
    spec.schedule.type = LearningRateSchedule::Type::kStep;
    spec.schedule.step_iterations = 2;
    spec.schedule.gamma = 1.0 / 3.0;
    ASSERT_TRUE(validate(spec).ok());
    const std::size_t slots = static_cast<std::size_t>(optimizer_state_slots(spec));
    std::vector<float> state0(slots >= 1 ? start.size() : 0);
    std::vector<float> state1(slots >= 2 ? start.size() : 0);
    std::vector<float> w = start;
    for (std::size_t t = 0; t < golden.at("gradients").size(); ++t) {
      // Four workers' sum, to be scaled by 1/4: exact in binary.
      auto gradient = golden.at("gradients")[t].get<std::vector<float>>();
      for (float& g : gradient) g *= 4.0f;
      const OptimizerStep step = make_optimizer_step(spec, static_cast<Iteration>(t), 0.25f);
      apply_optimizer(step, gradient, w, w, state0, state1);
      const auto expected = json.at("trajectory")[t].get<std::vector<float>>();
      for (std::size_t i = 0; i < w.size(); ++i) {
        // Both round a handful of times per step, to values of magnitude up to |w| + lr |update|
        // (update of order 1 for adam): 8 roundings of 2^-24 per step taken.
        const double tolerance = 8.0 * static_cast<double>(t + 1) * 0x1p-24 *
                                 std::max(1.0, std::abs(static_cast<double>(expected[i])));
        EXPECT_NEAR(w[i], expected[i], tolerance) << "step " << t << ", element " << i;
      }
    }
  }
}

struct Tensor {
  std::vector<float> w, gradient, state0, state1;
  StepMultipliers multipliers;
};

StepMultipliers multipliers_of(const Json& json) {
  StepMultipliers multipliers;
  multipliers.learning_rate = json.value("learning_rate_multiplier", 1.0);
  multipliers.weight_decay = json.value("weight_decay_multiplier", 1.0);
  multipliers.trust_ratio = json.value("trust_ratio", true);
  return multipliers;
}

TEST(Optimizer, ClippingAndLarsFollowPyTorchOverSeveralTensors) {
  std::ifstream file("tests/golden/optimizer/optimizer.json");
  const Json golden = Json::parse(file).at("tensors");
  ASSERT_EQ(golden.at("cases").size(), 6u);
  for (const Json& json : golden.at("cases")) {
    SCOPED_TRACE(json.at("name"));
    const OptimizerSpec spec = spec_of(json);
    ASSERT_TRUE(validate(spec).ok());
    const int slots = optimizer_state_slots(spec);
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, start] : golden.at("start").items()) {
      Tensor& tensor = tensors[name];
      tensor.w = start.get<std::vector<float>>();
      tensor.state0.resize(slots > 0 ? tensor.w.size() : 0);
      tensor.state1.resize(slots > 1 ? tensor.w.size() : 0);
      tensor.multipliers = multipliers_of(json.value(name, Json::object()));
    }
    for (std::size_t t = 0; t < golden.at("gradients").size(); ++t) {
      double all_gradients = 0.0;
      for (auto& [name, tensor] : tensors) {
        tensor.gradient = golden.at("gradients")[t].at(name).get<std::vector<float>>();
        all_gradients += square_sum(tensor.gradient);
        for (float& g : tensor.gradient) g *= 4.0f;  // four workers' sum
      }
      for (auto& [name, tensor] : tensors) {
        const TensorSquares squares{square_sum(tensor.gradient) / 16.0, square_sum(tensor.w)};
        const OptimizerStep step = make_optimizer_step(
            spec, static_cast<Iteration>(t), 0.25f, tensor.multipliers, {all_gradients, squares});
        apply_optimizer(step, tensor.gradient, tensor.w, tensor.w, tensor.state0, tensor.state1);
        const auto expected = json.at("trajectory")[t].at(name).get<std::vector<float>>();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          // As above, and PyTorch takes its norms in float32: 7 more roundings.
          const double tolerance = 16.0 * static_cast<double>(t + 1) * 0x1p-24 *
                                   std::max(1.0, std::abs(static_cast<double>(expected[i])));
          EXPECT_NEAR(tensor.w[i], expected[i], tolerance) << name << " step " << t;
        }
      }
    }
  }
}

TEST(Optimizer, WhoAsksForWhichNorms) {
  OptimizerSpec spec;
  EXPECT_EQ(norm_scope(spec), NormScope::kNone);
  spec.type = OptimizerType::kLars;
  EXPECT_EQ(norm_scope(spec), NormScope::kLayer);
  spec.clip_norm = 1.0;
  EXPECT_EQ(norm_scope(spec), NormScope::kNetwork);
  spec.type = OptimizerType::kAdam;
  EXPECT_EQ(norm_scope(spec), NormScope::kNetwork);
  spec.clip_norm = 0.0;
  spec.rates_by_program = true;
  EXPECT_EQ(norm_scope(spec), NormScope::kProgram);
}

TEST(Optimizer, ASumIsTheMeanGradientItself) {
  OptimizerSpec spec;
  spec.type = OptimizerType::kSum;
  EXPECT_EQ(optimizer_state_slots(spec), 0);
  EXPECT_EQ(norm_scope(spec), NormScope::kNone);
  SplitMix64 random(7);
  std::vector<float> gradient(10'000), parameters(10'000, 3.0f), expected;  // more than a block
  for (float& value : gradient) value = random.uniform() - 0.5f;
  for (const float value : gradient) expected.push_back(value * 0.25f);
  apply_optimizer(make_optimizer_step(spec, 5, 0.25f), gradient, parameters, parameters, {}, {});
  EXPECT_EQ(parameters, expected);
}

TEST(Optimizer, AProgramsRatesTakeThePlaceOfTheJobs) {
  for (const OptimizerType type :
       {OptimizerType::kSgd, OptimizerType::kAdam, OptimizerType::kAdamW}) {
    OptimizerSpec spec;
    spec.type = type;
    spec.momentum = type == OptimizerType::kSgd ? 0.9 : 0.0;
    spec.learning_rate = 0.125;
    spec.weight_decay = 0.01;
    const OptimizerStep of_job = make_optimizer_step(spec, 3, 0.5f);
    spec.learning_rate = 99.0;
    spec.weight_decay = 99.0;
    const OptimizerStep of_program =
        optimizer_step_at({.learning_rate = 0.125, .weight_decay = 0.01}, spec, 3, 0.5f);
    std::vector<float> w1 = {1.0f}, m1 = {0.5f}, v1, w2 = w1, m2 = m1, v2;
    if (type != OptimizerType::kSgd) v1 = v2 = {0.25f};
    const std::vector<float> gradient = {2.0f};
    apply_optimizer(of_job, gradient, w1, w1, m1, v1);
    apply_optimizer(of_program, gradient, w2, w2, m2, v2);
    EXPECT_EQ(w1, w2);
    EXPECT_EQ(m1, m2);
    EXPECT_NE(w1[0], 1.0f);
  }
}

TEST(Optimizer, AProgramsRateOfZeroStillGathersMomentumAsInPyTorch) {
  OptimizerSpec spec;
  spec.momentum = 0.5;
  spec.rates_by_program = true;
  std::vector<float> w = {1.0f}, m = {1.0f};
  apply_optimizer(optimizer_step_at({.learning_rate = 0.0, .weight_decay = 0.0}, spec, 0, 1.0f),
                  std::vector<float>{2.0f}, w, w, m, {});
  EXPECT_EQ(w[0], 1.0f);
  EXPECT_EQ(m[0], 2.5f);
}

TEST(Optimizer, LarsWithoutANormHasARatioOfOne) {
  OptimizerSpec spec;
  spec.type = OptimizerType::kLars;
  spec.learning_rate = 0.5;
  for (const TensorSquares& squares : {TensorSquares{0.0, 4.0}, TensorSquares{4.0, 0.0}}) {
    std::vector<float> w = {1.0f};
    const std::vector<float> gradient = {2.0f};
    apply_optimizer(make_optimizer_step(spec, 0, 1.0f, {}, {0.0, squares}), gradient, w, w, {}, {});
    EXPECT_EQ(w[0], 0.0f);
  }
}

/// Buffers of one training state, at any offset in memory.
struct State {
  explicit State(std::size_t size)
      : gradient(size), w(size), out(size), state0(size), state1(size) {
    SplitMix64 random(size);
    for (std::size_t i = 0; i < size; ++i) {
      // Uneven values, some tiny (denormal squares), so that a contraction would show.
      gradient[i] = (random.uniform() - 0.5f) * (i % 7 == 0 ? 1e-22f : 1.0f);
      w[i] = random.uniform() - 0.5f;
      state0[i] = random.uniform() - 0.5f;
      state1[i] = random.uniform() * 0.01f;
    }
  }
  void apply(const OptimizerSpec& spec, const OptimizerStep& step, std::size_t begin,
             std::size_t count, bool in_place) {
    const int slots = optimizer_state_slots(spec);
    const auto part = [&](std::vector<float>& all) { return std::span(all).subspan(begin, count); };
    apply_optimizer(step, part(gradient), part(w), in_place ? part(w) : part(out),
                    slots >= 1 ? part(state0) : std::span<float>(),
                    slots >= 2 ? part(state1) : std::span<float>());
  }
  std::vector<float> gradient, w, out, state0, state1;
};

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

TEST(Optimizer, AnySplitGivesTheSameBits) {
  constexpr std::size_t kSize = 203;  // odd: vector bodies leave a remainder
  for (const OptimizerSpec& spec : all_kinds()) {
    const OptimizerStep step = make_optimizer_step(spec, 3, 1.0f / 3.0f);
    State whole(kSize);
    whole.apply(spec, step, 0, kSize, /*in_place=*/false);

    State single(kSize);  // the scalar reference: one element at a time
    for (std::size_t i = 0; i < kSize; ++i) single.apply(spec, step, i, 1, false);
    ASSERT_EQ(bits_of(single.out), bits_of(whole.out));
    ASSERT_EQ(bits_of(single.state0), bits_of(whole.state0));
    ASSERT_EQ(bits_of(single.state1), bits_of(whole.state1));

    for (std::size_t cut = 0; cut <= kSize; ++cut) {
      State split(kSize);
      split.apply(spec, step, 0, cut, true);
      split.apply(spec, step, cut, kSize - cut, true);
      ASSERT_EQ(bits_of(split.w), bits_of(whole.out)) << "cut at " << cut;
      ASSERT_EQ(bits_of(split.state0), bits_of(whole.state0)) << "cut at " << cut;
      ASSERT_EQ(bits_of(split.state1), bits_of(whole.state1)) << "cut at " << cut;
    }
  }
}

TEST(Optimizer, OutOfPlaceLeavesTheInputAlone) {
  for (const OptimizerSpec& spec : all_kinds()) {
    State state(33);
    const std::vector<float> before = state.w;
    state.apply(spec, make_optimizer_step(spec, 0, 1.0f), 0, 33, false);
    EXPECT_EQ(state.w, before);
    EXPECT_NE(state.out, before);
  }
}

TEST(Optimizer, MultipliersScaleRateAndDecay) {
  for (OptimizerSpec spec : all_kinds()) {
    const OptimizerStep step =
        make_optimizer_step(spec, 3, 0.5f, {.learning_rate = 2.0, .weight_decay = 0.25});
    spec.learning_rate *= 2.0;
    spec.weight_decay *= 0.25;
    State multiplied(19), expected(19);
    multiplied.apply(spec, step, 0, 19, true);
    expected.apply(spec, make_optimizer_step(spec, 3, 0.5f), 0, 19, true);
    EXPECT_EQ(bits_of(multiplied.w), bits_of(expected.w));
  }
}

TEST(Optimizer, AMultiplierOfZeroFreezesStateAndAll) {
  for (const OptimizerSpec& spec : all_kinds()) {
    const OptimizerStep step = make_optimizer_step(spec, 3, 0.5f, {.learning_rate = 0.0});
    const State before(19);
    State frozen(19);
    frozen.apply(spec, step, 0, 19, true);
    EXPECT_EQ(frozen.w, before.w);
    EXPECT_EQ(frozen.state0, before.state0) << "no momentum of what was not stepped";
    EXPECT_EQ(frozen.state1, before.state1);
    frozen.apply(spec, step, 0, 19, false);
    EXPECT_EQ(frozen.out, before.w);
  }
}

TEST(Optimizer, StateSlots) {
  OptimizerSpec spec;
  EXPECT_EQ(optimizer_state_slots(spec), 0);
  spec.momentum = 0.5;
  EXPECT_EQ(optimizer_state_slots(spec), 1);
  spec.type = OptimizerType::kAdam;
  EXPECT_EQ(optimizer_state_slots(spec), 2);
  spec.type = OptimizerType::kAdamW;
  EXPECT_EQ(optimizer_state_slots(spec), 2);
}

TEST(Optimizer, RefusesWhatCannotTrain) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto message = [](const std::function<void(OptimizerSpec&)>& change) {
    OptimizerSpec spec;
    change(spec);
    return std::string(validate(spec).message());
  };
  using Spec = OptimizerSpec;
  EXPECT_EQ(message([](Spec&) {}), "");
  EXPECT_THAT(message([&](Spec& s) { s.learning_rate = nan; }),
              HasSubstr("optimizer.learning_rate"));
  EXPECT_THAT(message([](Spec& s) { s.learning_rate = -0.1; }), HasSubstr("got -0.1"));
  EXPECT_THAT(message([](Spec& s) { s.learning_rate = 1e300; }), HasSubstr("learning_rate"));
  EXPECT_THAT(message([](Spec& s) { s.weight_decay = -1; }), HasSubstr("optimizer.weight_decay"));
  EXPECT_THAT(message([&](Spec& s) {
                s.layers = {{"*", {}}, {"*", {nan, 1.0}}};
              }),
              HasSubstr("optimizer.layers[1].learning_rate_multiplier"));
  EXPECT_THAT(message([](Spec& s) {
                s.layers = {{"*", {1.0, -1.0}}};
              }),
              HasSubstr("optimizer.layers[0].weight_decay_multiplier"));
  EXPECT_THAT(message([&](Spec& s) { s.clip_norm = nan; }), HasSubstr("optimizer.clip_norm"));
  EXPECT_THAT(message([](Spec& s) {
                s.type = OptimizerType::kLars;
                s.trust_coefficient = 0.0;
              }),
              HasSubstr("optimizer.trust_coefficient"));
  EXPECT_THAT(message([](Spec& s) { s.momentum = 1.0; }), HasSubstr("optimizer.momentum"));
  EXPECT_THAT(message([](Spec& s) { s.momentum = 1.0 - 1e-12; }), HasSubstr("optimizer.momentum"));
  EXPECT_THAT(message([](Spec& s) { s.nesterov = true; }), HasSubstr("optimizer.nesterov"));
  const auto adam = [&](const std::function<void(Spec&)>& change) {
    return message([&](Spec& s) {
      s.type = OptimizerType::kAdam;
      change(s);
    });
  };
  EXPECT_EQ(adam([](Spec&) {}), "");
  EXPECT_THAT(adam([](Spec& s) { s.beta1 = 1; }), HasSubstr("optimizer.beta1"));
  EXPECT_THAT(adam([](Spec& s) { s.beta2 = -0.5; }), HasSubstr("optimizer.beta2"));
  EXPECT_THAT(adam([](Spec& s) { s.epsilon = 1e-60; }), HasSubstr("optimizer.epsilon"));
}

TEST(OptimizerDeathTest, ChecksLengths) {
  OptimizerSpec spec;
  spec.momentum = 0.9;
  std::vector<float> values(4);
  const OptimizerStep step = make_optimizer_step(spec, 0, 1.0f);
  EXPECT_DEATH(apply_optimizer(step, values, values, values, {}, {}), "state0");
}

}  // namespace
}  // namespace poseidon::optimizer_test
