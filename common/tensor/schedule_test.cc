#include "common/tensor/schedule.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::schedule_test {
namespace {

using Json = nlohmann::json;
using Type = LearningRateSchedule::Type;
using ::testing::HasSubstr;

LearningRateSchedule schedule_of(const Json& json) {
  LearningRateSchedule schedule;
  for (const Type type : all_schedules()) {
    if (schedule_name(type) == json.at("type")) schedule.type = type;
  }
  schedule.gamma = json.value("gamma", schedule.gamma);
  schedule.power = json.value("power", schedule.power);
  schedule.minimum = json.value("minimum", schedule.minimum);
  schedule.end_iteration = json.value("end_iteration", schedule.end_iteration);
  schedule.step_iterations = json.value("step_iterations", schedule.step_iterations);
  schedule.milestones_iterations =
      json.value("milestones_iterations", schedule.milestones_iterations);
  return schedule;
}

TEST(Schedule, FollowsPyTorch) {
  std::ifstream file("tests/golden/optimizer/optimizer.json");
  const Json golden = Json::parse(file);
  ASSERT_EQ(golden.at("schedules").size(), 10u);
  for (const Json& json : golden.at("schedules")) {
    SCOPED_TRACE(json.dump());
    const LearningRateSchedule schedule = schedule_of(json);
    ASSERT_TRUE(validate(schedule).ok()) << validate(schedule);
    EXPECT_EQ(schedule_name(schedule.type), json.at("type"));
    const double base = json.at("learning_rate");
    Iteration iteration = 0;
    for (const double expected : json.at("rates")) {
      // PyTorch multiplies from one step to the next: a few roundings of 2^-53 per step. Both may
      // end in what cancels to about 0.
      EXPECT_NEAR(learning_rate_at(schedule, base, iteration), expected, 1e-14)
          << "iteration " << iteration;
      ++iteration;
    }
  }
}

TEST(Schedule, ExactWhereItCanBe) {
  LearningRateSchedule schedule;
  const auto rate = [&](Iteration i) { return learning_rate_at(schedule, 0.8, i); };
  EXPECT_EQ(rate(0), 0.8);
  EXPECT_EQ(rate(1'000'000'000'000), 0.8);
  schedule.type = Type::kStep;
  schedule.step_iterations = 10;
  schedule.gamma = 0.5;
  EXPECT_EQ(rate(9), 0.8);
  EXPECT_EQ(rate(10), 0.4);
  EXPECT_EQ(rate(39), 0.1);
  schedule.type = Type::kMultiStep;
  schedule.milestones_iterations = {3, 5};
  EXPECT_EQ(rate(2), 0.8);
  EXPECT_EQ(rate(3), 0.4);
  EXPECT_EQ(rate(5), 0.2);
  schedule.type = Type::kPolynomial;
  schedule.end_iteration = 4;
  EXPECT_EQ(rate(0), 0.8);
  EXPECT_NEAR(rate(2), 0.4, 1e-16);
  EXPECT_EQ(rate(4), 0.0) << "to zero, and no further";
  EXPECT_EQ(rate(5), 0.0);
  schedule.type = Type::kCosine;
  schedule.minimum = 0.1;
  EXPECT_NEAR(rate(0), 0.8, 1e-15);
  EXPECT_NEAR(rate(2), 0.45, 1e-15);
  EXPECT_EQ(rate(4), 0.1);
  EXPECT_EQ(rate(1'000'000), 0.1);
}

TEST(Schedule, WarmUpMultipliesWhateverTheScheduleGives) {
  for (const Type type : all_schedules()) {
    LearningRateSchedule plain;
    plain.type = type;
    plain.step_iterations = 3;
    plain.milestones_iterations = {3};
    plain.end_iteration = 9;
    plain.power = 0.7;
    LearningRateSchedule warm = plain;
    warm.warmup_iterations = 4;  // from r/4 to r
    for (Iteration i = 0; i < 6; ++i) {
      const double share = i < 4 ? static_cast<double>(i + 1) / 4.0 : 1.0;
      EXPECT_EQ(learning_rate_at(warm, 0.8, i), learning_rate_at(plain, 0.8, i) * share);
    }
  }
}

TEST(Schedule, PortableFunctionsAreAsExactAsTheLibrarys) {
  for (const double base : {1e-300, 1e-9, 0.1, 0.5, 0.7071, 0.7072, 0.999999, 1.0, 1.4, 3.0, 1e9}) {
    for (const double exponent : {-1.7, -0.75, 0.0, 0.3, 0.5, 1.0, 2.0, 3.9}) {
      const double expected = std::pow(base, exponent);
      if (!std::isfinite(expected)) continue;
      EXPECT_NEAR(portable_power(base, exponent), expected, 1e-13 * expected)
          << base << "^" << exponent;
    }
  }
  EXPECT_EQ(portable_power(0.0, 2.0), 0.0);
  EXPECT_EQ(portable_power(1e9, 1e9), std::numeric_limits<double>::infinity());
  EXPECT_EQ(portable_power(1e-9, 1e9), 0.0);
  for (int i = 0; i <= 100; ++i) {
    EXPECT_NEAR(portable_cos_pi(i / 100.0), std::cos(std::acos(-1.0) * i / 100.0), 4e-16);
  }
}

TEST(Schedule, RefusesWhatIsNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto message = [](Type type, const std::function<void(LearningRateSchedule&)>& change) {
    LearningRateSchedule schedule;
    schedule.type = type;
    schedule.step_iterations = 1;
    schedule.end_iteration = 1;
    change(schedule);
    return std::string(validate(schedule).message());
  };
  using Schedule = LearningRateSchedule;
  for (const Type type : all_schedules()) EXPECT_EQ(message(type, [](Schedule&) {}), "");
  EXPECT_THAT(message(Type::kStep, [](Schedule& s) { s.step_iterations = 0; }),
              HasSubstr("optimizer.schedule.step_iterations"));
  EXPECT_THAT(message(Type::kStep, [](Schedule& s) { s.gamma = -1; }), HasSubstr("gamma"));
  EXPECT_THAT(message(Type::kExponential, [](Schedule& s) { s.gamma = 1.1; }), HasSubstr("gamma"));
  EXPECT_THAT(message(Type::kInverse, [&](Schedule& s) { s.gamma = nan; }), HasSubstr("gamma"));
  EXPECT_THAT(message(Type::kInverse, [](Schedule& s) { s.power = -0.5; }), HasSubstr("power"));
  EXPECT_THAT(message(Type::kPolynomial, [](Schedule& s) { s.power = 0; }), HasSubstr("power"));
  EXPECT_THAT(message(Type::kPolynomial, [](Schedule& s) { s.end_iteration = 0; }),
              HasSubstr("optimizer.schedule.end_iteration"));
  EXPECT_THAT(message(Type::kCosine, [](Schedule& s) { s.minimum = -1; }), HasSubstr("minimum"));
  EXPECT_THAT(message(Type::kMultiStep,
                      [](Schedule& s) {
                        s.milestones_iterations = {5, 5};
                      }),
              HasSubstr("milestones_iterations"));
  EXPECT_THAT(message(Type::kConstant, [](Schedule& s) { s.warmup_iterations = -1; }),
              HasSubstr("warmup_iterations"));
}

}  // namespace
}  // namespace poseidon::schedule_test
