#include "common/base/nearest.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace poseidon::nearest_test {
namespace {

TEST(Nearest, FindsTheLikelyName) {
  const std::vector<std::string> known = {"kernel", "stride", "pad", "outputs", "batch_size"};
  EXPECT_EQ(nearest_name("kernal", known), "kernel");
  EXPECT_EQ(nearest_name("Stride", known), "stride");
  EXPECT_EQ(nearest_name("strdie", known), "stride");
  EXPECT_EQ(nearest_name("output", known), "outputs");
  EXPECT_EQ(nearest_name("batchsize", known), "batch_size");
}

TEST(Nearest, KnowsPartsAndAbbreviations) {
  const std::vector<std::string> known = {"iterations", "learning_rate", "weight_decay",
                                          "test_every_iterations"};
  EXPECT_EQ(nearest_name("lr", known), "learning_rate");
  EXPECT_EQ(nearest_name("wd", known), "weight_decay");
  EXPECT_EQ(nearest_name("iters", known), "iterations");
  EXPECT_EQ(nearest_name("rate", known), "learning_rate");
  EXPECT_EQ(nearest_name("max_iterations", known), "iterations");
  EXPECT_EQ(nearest_name("every", known), "test_every_iterations");
  EXPECT_EQ(nearest_name("rl", known), "");  // not in order
  EXPECT_EQ(nearest_name("ate", known), "");
  EXPECT_EQ(nearest_name("l", known), "");
}

TEST(Nearest, TellsMisspellingsFromOtherNames) {
  EXPECT_TRUE(is_likely_misspelling("iteratoins", "iterations"));
  EXPECT_FALSE(is_likely_misspelling("test_every_iterations", "iterations"));
}

TEST(Nearest, SaysNothingWhenNothingIsNear) {
  const std::vector<std::string> known = {"kernel", "pad"};
  EXPECT_EQ(nearest_name("momentum", known), "");
  EXPECT_EQ(nearest_name("", known), "");
  EXPECT_EQ(nearest_name("x", std::vector<std::string>{"a"}), "");
  EXPECT_EQ(nearest_name("x", std::vector<std::string>{}), "");
  EXPECT_EQ(nearest_name(std::string(1'000'000, 'k'), known), "");
}

TEST(Nearest, TakesTheFirstOfEquals) {
  EXPECT_EQ(nearest_name("ip3", std::vector<std::string>{"ip1", "ip2"}), "ip1");
}

TEST(Nearest, ReadyMadeHint) {
  EXPECT_EQ(did_you_mean("kernal", std::vector<std::string>{"kernel"}),
            " (did you mean \"kernel\"?)");
  EXPECT_EQ(did_you_mean("zzz", std::vector<std::string>{"kernel"}), "");
}

}  // namespace
}  // namespace poseidon::nearest_test
