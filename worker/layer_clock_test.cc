// What a layer took: by the hooks, or by the device's own account.

#include "worker/layer_clock.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon {
namespace {

using ::testing::ElementsAre;
using Row = std::vector<std::int64_t>;  ///< layer, begin, end

class LayerClockTest : public ::testing::Test {
 protected:
  void pass_time(std::int64_t ns) { host_.advance(Nanoseconds(ns)); }
  static std::vector<Row> rows(std::span<const LayerInterval> pass) {
    std::vector<Row> found;
    for (const LayerInterval& ran : pass) {
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

TEST_F(LayerClockTest, TheDevicesAccountTakesTheirPlaceAndEndsWithThePass) {
  clock_.begin_iteration();
  forward_hooks(1, 1);
  pass_time(993);  // the device is done: 3000 ns since the beginning
  const std::vector<LayerInterval> device = {{LayerIndex(0), Nanoseconds(0), Nanoseconds(700)},
                                             {LayerIndex(1), Nanoseconds(800), Nanoseconds(2000)}};
  EXPECT_THAT(rows(clock_.end_forward(device)),
              ElementsAre(Row{0, 1000, 1700}, Row{1, 1800, 3000}));
  EXPECT_EQ(clock_.times()[0].forward.count(), 700);
  EXPECT_EQ(clock_.times()[1].forward.count(), 1200);
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

// Tests of the model run the same hooks.
TEST_F(LayerClockTest, APassThatIsNotEndedCountsForNothing) {
  clock_.begin_iteration();
  forward_hooks(10, 20);
  forward_hooks(10, 20);
  clock_.end_forward({});
  EXPECT_EQ(clock_.times()[1].forward.count(), 20);
}

}  // namespace
}  // namespace poseidon
