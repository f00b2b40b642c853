#include "common/wire/norm_wire.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace poseidon::norm_wire_test {
namespace {

Bytes bytes_of(const std::string& text) {
  Bytes bytes;
  bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(text.data()), text.size());
  return bytes;
}

StepTotals totals_of(std::size_t parts, NormScope scope) {
  StepTotals totals{.all_gradients = 7.5, .tensors = {}, .gradient_scale = 1.0, .rates = {}};
  for (std::size_t i = 0; i < parts; ++i) {
    const auto value = static_cast<double>(i);
    totals.tensors.push_back({.gradient = value + 0.5, .parameters = value + 0.25});
    if (scope != NormScope::kProgram) continue;
    totals.gradient_scale = 0.125;
    totals.rates.push_back({.learning_rate = value * 0.1, .weight_decay = value * 0.2});
  }
  return totals;
}

TEST(NormWire, TotalsComeBackAsTheyWere) {
  for (const NormScope scope : {NormScope::kLayer, NormScope::kNetwork, NormScope::kProgram}) {
    for (const std::size_t parts : {1u, 2u, 5u}) {
      const StepTotals totals = totals_of(parts, scope);
      const std::string text = encode_totals(totals);
      ASSERT_EQ(text.size(), totals_bytes(parts, scope));
      const absl::StatusOr<StepTotals> back = decode_totals(bytes_of(text), scope);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(back->all_gradients, totals.all_gradients);
      EXPECT_EQ(back->tensors, totals.tensors);
      EXPECT_EQ(back->gradient_scale, totals.gradient_scale);
      EXPECT_EQ(back->rates, totals.rates);
    }
  }
}

TEST(NormWire, NumbersThatNoStepCanHaveAreRefused) {
  for (const double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(decode_norms(bytes_of(encode_norms({{bad, 0.0}}))).ok());
    StepTotals totals = totals_of(2, NormScope::kProgram);
    totals.gradient_scale = bad;
    EXPECT_FALSE(decode_totals(bytes_of(encode_totals(totals)), NormScope::kProgram).ok());
    totals = totals_of(2, NormScope::kProgram);
    totals.rates[1].weight_decay = bad;
    EXPECT_FALSE(decode_totals(bytes_of(encode_totals(totals)), NormScope::kProgram).ok());
  }
  StepTotals totals = totals_of(1, NormScope::kProgram);
  totals.rates[0].learning_rate = 1e39;
  EXPECT_THAT(
      decode_totals(bytes_of(encode_totals(totals)), NormScope::kProgram).status().message(),
      ::testing::HasSubstr("a learning rate of 1e+39"));
}

}  // namespace
}  // namespace poseidon::norm_wire_test
