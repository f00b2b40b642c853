#include "common/plan/tensor_parts.h"

#include <tuple>

#include "gmock/gmock.h"

namespace poseidon::tensor_parts_test {
namespace {

using ::testing::ElementsAre;

PlanLayer three_tensors() {
  PlanLayer layer;
  layer.parameters = 17;
  layer.tensors = {{"weight", 10, {2.0, 1.0}}, {"bias", 3, {1.0, 0.0}}, {"scale", 4, {}}};
  return layer;
}

TEST(TensorParts, WithoutTensorsThereIsOnePart) {
  PlanLayer layer;
  layer.parameters = 9;
  EXPECT_EQ(tensor_count(layer), 1u);
  const auto parts = tensor_parts(layer, 4, 5);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].begin, 0u);
  EXPECT_EQ(parts[0].size, 5u);
  EXPECT_EQ(parts[0].multipliers, StepMultipliers{});
}

TEST(TensorParts, EveryCutCoversItsElementsOnce) {
  const PlanLayer layer = three_tensors();
  EXPECT_EQ(tensor_count(layer), 3u);
  const std::vector<std::size_t> owner = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2};
  for (std::int64_t offset = 0; offset < 17; ++offset) {
    for (std::int64_t elements = 1; offset + elements <= 17; ++elements) {
      std::size_t at = 0;
      for (const TensorPart& part : tensor_parts(layer, offset, elements)) {
        ASSERT_EQ(part.begin, at);
        ASSERT_GT(part.size, 0u);
        for (std::size_t e = 0; e < part.size; ++e, ++at) {
          ASSERT_EQ(part.tensor, owner[static_cast<std::size_t>(offset) + at]);
        }
        ASSERT_EQ(part.multipliers, layer.tensors[part.tensor].multipliers);
      }
      ASSERT_EQ(at, static_cast<std::size_t>(elements));
    }
  }
}

TEST(TensorParts, ARunMeetsItsPartsOnly) {
  const auto parts = tensor_parts(three_tensors(), 8, 9);  // 2 + 3 + 4
  std::vector<std::tuple<std::size_t, std::size_t, std::size_t>> met;
  const auto note = [&](std::size_t part, std::size_t begin, std::size_t size) {
    met.emplace_back(part, begin, size);
  };
  for_each_part(parts, 1, 3, note);
  EXPECT_THAT(met, ElementsAre(std::tuple(0, 1, 1), std::tuple(1, 2, 2)));
  met.clear();
  for_each_part(parts, 5, 4, note);
  EXPECT_THAT(met, ElementsAre(std::tuple(2, 5, 4)));
}

}  // namespace
}  // namespace poseidon::tensor_parts_test
