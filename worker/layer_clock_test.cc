// Times of a layer, by the hooks or by the device.

#include "worker/layer_clock.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::layer_clock_test {
namespace {

using ::testing::ElementsAre;
using Row = std::vector<std::int64_t>;  ///< layer, begin, end

class LayerClockTest : public ::testing::Test {
 protected:
  void pass_time(std::int64_t ns) { host_.advance(Nanoseconds(ns)); }
  static std::vector<Row> rows(const DeviceTimes& pass) {
    std::vector<Row> found;
    for (const LayerInterval& ran : pass.layers) {
      found.push_back({ran.layer.value(), ran.begin.count(), ran.end.count()});
    }
    return found;
  }
  /// Of two layers; each waits 1000 ns for its parameters.
  void forward_hooks(std::int64_t first, std::int64_t second) {
    clock_.begin_forward();
    pass_time(5);  // a layer before the first one that has parameters
    clock_.stop_forward();
    pass_time(1000);
    clock_.run_forward(LayerIndex(0));
    pass_time(first);
    clock_.stop_forward();
    pass_time(1000);
    clock_.run_forward(LayerIndex(1));
    pass_time(second);
  }

  ManualClock host_;
  LayerClock clock_{&host_, 2};
};

TEST_F(LayerClockTest, HooksLeaveOutWhatTheyWaitFor) {
  clock_.begin_iteration();
  forward_hooks(10, 20);
  EXPECT_THAT(rows(clock_.end_forward({})),
              ElementsAre(Row{0, 0, 5}, Row{0, 1005, 1015}, Row{1, 2015, 2035}));
  clock_.begin_backward();
  pass_time(30);
  clock_.stop_backward(LayerIndex(1));
  pass_time(1000);  // the hook itself
  clock_.run_backward();
  pass_time(40);
  clock_.stop_backward(LayerIndex(0));
  clock_.run_backward();
  EXPECT_THAT(rows(clock_.end_backward({})), ElementsAre(Row{1, 2035, 2065}, Row{0, 3065, 3105}));
  EXPECT_EQ(clock_.times()[0].forward.count(), 15);
  EXPECT_EQ(clock_.times()[1].forward.count(), 20);
  EXPECT_EQ(clock_.times()[0].backward.count(), 40);
  EXPECT_EQ(clock_.times()[1].backward.count(), 30);
}

TEST_F(LayerClockTest, TheDevicesAccountTakesTheirPlaceAndBeginsWithThePass) {
  pass_time(400);
  clock_.begin_iteration();
  forward_hooks(1, 1);
  pass_time(993);  // and 3000 since the pass began
  const std::vector<LayerInterval> device = {{LayerIndex(0), Nanoseconds(0), Nanoseconds(700)},
                                             {LayerIndex(1), Nanoseconds(800), Nanoseconds(2000)}};
  // A copy may be ahead of the pass's first work by a hair.
  const std::vector<CopyInterval> copies = {{.stage = Stage::kUpload,
                                             .layer = LayerIndex(1),
                                             .bytes = 64,
                                             .begin = Nanoseconds(-1),
                                             .end = Nanoseconds(50)}};
  const DeviceTimes told = clock_.end_forward({.layers = device, .copies = copies});
  EXPECT_THAT(rows(told), ElementsAre(Row{0, 400, 1100}, Row{1, 1200, 2400}));
  ASSERT_EQ(told.copies.size(), 1u);
  EXPECT_EQ(told.copies[0].stage, Stage::kUpload);
  EXPECT_EQ(told.copies[0].layer, LayerIndex(1));
  EXPECT_EQ(told.copies[0].bytes, 64);
  EXPECT_EQ(told.copies[0].begin.count(), 399);
  EXPECT_EQ(told.copies[0].end.count(), 450);
  EXPECT_EQ(clock_.times()[0].forward.count(), 700);
  EXPECT_EQ(clock_.times()[1].forward.count(), 1200);
  clock_.begin_backward();
  EXPECT_TRUE(clock_.end_backward({}).copies.empty()) << "of another pass";
}

TEST_F(LayerClockTest, PartsOfABatchAddUp) {
  clock_.begin_iteration();
  for (int part = 0; part < 3; ++part) {
    forward_hooks(10, 20);
    clock_.end_forward({});
  }
  EXPECT_EQ(clock_.times()[0].forward.count(), 45);
  EXPECT_EQ(clock_.times()[1].forward.count(), 60);
  clock_.begin_iteration();
  EXPECT_EQ(clock_.times()[1].forward.count(), 0);
}

// The hooks of a device that was not asked tell when work was queued.
TEST_F(LayerClockTest, AnIterationThatIsNotMeasuredTakesWhatTheLastOneTook) {
  const std::vector<LayerInterval> device = {{LayerIndex(0), Nanoseconds(0), Nanoseconds(700)},
                                             {LayerIndex(1), Nanoseconds(800), Nanoseconds(2000)}};
  const auto iterate = [&](bool is_measured) {
    clock_.begin_iteration(is_measured);
    forward_hooks(1, 1);
    const bool has_rows =
        !clock_.end_forward({.layers = is_measured ? device : std::vector<LayerInterval>()})
             .layers.empty();
    clock_.begin_backward();
    clock_.stop_backward(LayerIndex(1));
    clock_.run_backward();
    clock_.end_backward({});
    return has_rows;
  };
  for (const bool is_measured : {true, false, false, true}) {
    EXPECT_EQ(iterate(is_measured), is_measured);
    EXPECT_EQ(clock_.times()[0].forward.count(), 700);
    EXPECT_EQ(clock_.times()[1].forward.count(), 1200);
  }
}

TEST(AsksTheDevice, InTheFirstIterationsAndNowAndThen) {
  std::vector<std::int64_t> asked;
  for (std::int64_t n = 0; n < 26; ++n) {
    if (asks_the_device(n)) asked.push_back(n);
  }
  EXPECT_THAT(asked, ElementsAre(0, 1, 2, 3, 8, 16, 24));
}

// Tests of the model run the same hooks.
TEST_F(LayerClockTest, APassThatIsNotEndedCountsForNothing) {
  clock_.begin_iteration();
  forward_hooks(10, 20);
  forward_hooks(10, 20);
  clock_.end_forward({});
  EXPECT_EQ(clock_.times()[1].forward.count(), 20);
}

}  // namespace
}  // namespace poseidon::layer_clock_test
