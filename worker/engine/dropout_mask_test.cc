#include "worker/engine/dropout_mask.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace poseidon::dropout_mask_test {
namespace {

/// One letter per element: kept or dropped.
std::string mask(std::uint64_t seed, const std::string& layer, std::uint64_t sample, double ratio,
                 std::size_t elements) {
  const std::vector<float> in(elements, 3.0f);
  std::vector<float> out(elements, -1.0f);
  apply_dropout(dropout_seed(seed, layer, sample), ratio, static_cast<std::int64_t>(elements),
                in.data(), out.data());
  std::string letters;
  for (const float value : out) {
    EXPECT_TRUE(value == 0.0f || value == 3.0f * static_cast<float>(1.0 / (1.0 - ratio))) << value;
    letters += value == 0.0f ? '.' : 'k';
  }
  return letters;
}

// From tests/data/sampling.py: dropout_keeps(1, "drop6", 0, 16, 0.5),
// dropout_keeps(7, "aux1.dropout", 1000, 12, 0.7).
TEST(DropoutMask, KnownAnswers) {
  EXPECT_EQ(mask(1, "drop6", 0, 0.5, 16), ".kk..kkk..k.kk..");
  EXPECT_EQ(mask(7, "aux1.dropout", 1000, 0.7, 12), ".kk.k.k..k..");
}

TEST(DropoutMask, FollowsSeedLayerAndSample) {
  const std::string once = mask(1, "drop6", 0, 0.5, 64);
  EXPECT_NE(mask(2, "drop6", 0, 0.5, 64), once);
  EXPECT_NE(mask(1, "drop7", 0, 0.5, 64), once);
  EXPECT_NE(mask(1, "drop6", 1, 0.5, 64), once);
  EXPECT_EQ(mask(1, "drop6", 0, 0.0, 8), "kkkkkkkk");
}

TEST(DropoutMask, IsScaledByTheRatioAsItIsWritten) {
  const float in = 1.0f;
  float out = 0.0f;
  // As a float, 0.999 leaves a share that is wrong by a hundred-thousandth.
  for (std::uint64_t sample = 0; out == 0.0f && sample < 100000; ++sample) {
    apply_dropout(dropout_seed(1, "drop", sample), 0.999, 1, &in, &out);
  }
  EXPECT_FLOAT_EQ(out, 1000.0f);
}

}  // namespace
}  // namespace poseidon::dropout_mask_test
