#include "coordinator/records/loss_curve.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace poseidon::loss_curve_test {
namespace {

MetricsLine loss(Iteration iteration, double value) {
  return {.iteration = iteration, .loss = value};
}
MetricsLine test(Iteration iteration, double value) {
  return {.iteration = iteration, .loss = std::nullopt, .test_loss = value, .test_accuracy = 0.5};
}

std::int64_t iterations(const LossCurve& curve) {
  std::int64_t sum = 0;
  for (const LossCurve::Point& point : curve.points()) sum += point.iterations;
  return sum;
}

TEST(MetricsLineText, IsReadBack) {
  const auto line =
      parse_metrics_line(R"({"iteration":7,"loss":2.5,"learning_rate":0.1,"images_per_s":10})");
  ASSERT_TRUE(line);
  EXPECT_EQ(line->iteration, 7);
  EXPECT_EQ(line->loss, 2.5);
  const auto unknown =
      parse_metrics_line(R"({"iteration":7,"loss":null,"learning_rate":0.1,"images_per_s":10})");
  ASSERT_TRUE(unknown && unknown->loss);
  EXPECT_TRUE(std::isnan(*unknown->loss)) << "a program may not tell it";
  const auto tested = parse_metrics_line(R"({"iteration":8,"test_loss":1.5,"test_accuracy":0.25})");
  ASSERT_TRUE(tested);
  EXPECT_EQ(tested->loss, std::nullopt);
  EXPECT_EQ(tested->test_loss, 1.5);
  EXPECT_EQ(tested->test_accuracy, 0.25);
  for (const char* wrong :
       {"", "{", "[]", "{}", R"({"iteration":1})", R"({"loss":1})", R"({"iteration":"1","loss":1})",
        R"({"iteration":1.5,"loss":1})", R"({"iteration":1,"loss":"low"})"}) {
    EXPECT_FALSE(parse_metrics_line(wrong)) << wrong;
  }
}

// Lines as they are written are read by another way than all else that is JSON.
TEST(MetricsLineText, IsTheSameHoweverItIsSpelled) {
  for (
      const std::string line :
      {R"({"iteration":7,"loss":2.5,"learning_rate":0.1,"images_per_s":10})",
       R"({"iteration":123456789012,"loss":-1.25e-07,"learning_rate":1e-30,"images_per_s":0.0})",
       R"({"iteration":0,"loss":6.9077552789821368,"learning_rate":0.05,"images_per_s":1234.5678})",
       R"({"iteration":8,"test_loss":1.5,"test_accuracy":1.0})"}) {
    const auto usual = parse_metrics_line(line);
    const auto other = parse_metrics_line(" " + line);
    ASSERT_TRUE(usual && other) << line;
    EXPECT_EQ(usual->iteration, other->iteration);
    EXPECT_EQ(usual->loss, other->loss);
    EXPECT_EQ(usual->test_loss, other->test_loss);
    EXPECT_EQ(usual->test_accuracy, other->test_accuracy);
    for (std::size_t cut = 0; cut < line.size(); ++cut) {
      EXPECT_FALSE(parse_metrics_line(line.substr(0, cut))) << line.substr(0, cut);
    }
  }
  const auto without_speed =
      parse_metrics_line(R"({"iteration":7,"loss":2.5,"learning_rate":0.1,"images_per_s":null})");
  ASSERT_TRUE(without_speed);
  EXPECT_EQ(without_speed->loss, 2.5);
  EXPECT_FALSE(
      parse_metrics_line(R"({"iteration":7,"loss":inf,"learning_rate":0,"images_per_s":0})"));
}

TEST(LossCurve, AShortRunIsThereAsItIs) {
  LossCurve curve;
  for (Iteration i = 0; i < 500; ++i) curve.add(loss(i, 1.0 / (1.0 + static_cast<double>(i))));
  ASSERT_EQ(curve.points().size(), 500u);
  EXPECT_EQ(curve.points()[9].first, 9);
  EXPECT_EQ(curve.points()[9].iterations, 1);
  EXPECT_EQ(curve.points()[9].mean, 0.1);
}

TEST(LossCurve, ALongOneHasMeanAndBoundsOfEqualParts) {
  constexpr Iteration kAll = 100'000;
  LossCurve curve;
  for (Iteration i = 0; i < kAll; ++i) curve.add(loss(i, static_cast<double>(i)));
  const auto& points = curve.points();
  EXPECT_LE(points.size(), LossCurve::kMaxPoints);
  EXPECT_GT(points.size(), LossCurve::kMaxPoints / 4);
  EXPECT_EQ(iterations(curve), kAll);
  Iteration next = 0;
  for (const LossCurve::Point& point : points) {
    EXPECT_EQ(point.first, next);
    next += point.iterations;
    EXPECT_EQ(point.min, static_cast<double>(point.first));
    EXPECT_EQ(point.max, static_cast<double>(next - 1));
    EXPECT_NEAR(point.mean, (point.min + point.max) / 2, 1e-6);
  }
  EXPECT_EQ(next, kAll);
}

TEST(LossCurve, FarApartOrBrokenValuesDoNoHarm) {
  LossCurve curve;
  for (Iteration i = 0; i < 600; ++i) curve.add(loss(i * (Iteration{1} << 52), 1.0));
  curve.add(loss(std::numeric_limits<Iteration>::max(), 2.0));
  curve.add(loss(-1, 5.0));
  curve.add(loss(3, std::numeric_limits<double>::quiet_NaN()));
  curve.add(test(3, std::numeric_limits<double>::infinity()));
  EXPECT_LE(curve.points().size(), LossCurve::kMaxPoints);
  EXPECT_EQ(iterations(curve), 601);
  EXPECT_EQ(curve.points().back().max, 2.0);
  EXPECT_TRUE(curve.tests().empty());
}

TEST(LossCurve, WhatIsRolledBackComesAgain) {
  LossCurve curve, undisturbed;
  for (Iteration i = 0; i < 3000; ++i) {
    curve.add(loss(i, static_cast<double>(i % 7)));
    undisturbed.add(loss(i, static_cast<double>(i % 7)));
    if (i % 20 == 19) curve.add(test(i + 1, 1.0));
  }
  curve.roll_back(1001);
  EXPECT_EQ(iterations(curve), 1001);
  EXPECT_EQ(curve.tests().back().iteration, 1000);
  for (Iteration i = 1001; i < 3000; ++i) curve.add(loss(i, static_cast<double>(i % 7)));
  EXPECT_EQ(iterations(curve), 3000);
  EXPECT_EQ(curve.points().size(), undisturbed.points().size());
  curve.roll_back(0);
  EXPECT_TRUE(curve.points().empty());
  EXPECT_TRUE(curve.tests().empty());
}

TEST(LossCurve, OfManyTestsSomeStayAndTheLastAlways) {
  LossCurve curve;
  for (Iteration i = 1; i <= 10'000; ++i) {
    curve.add(test(i, static_cast<double>(i)));
    ASSERT_LE(curve.tests().size(), LossCurve::kMaxTests + 1);
    ASSERT_EQ(curve.tests().back().iteration, i);
  }
  EXPECT_GT(curve.tests().size(), LossCurve::kMaxTests / 2);
  EXPECT_EQ(curve.tests().front().iteration, 1);
}

}  // namespace
}  // namespace poseidon::loss_curve_test
