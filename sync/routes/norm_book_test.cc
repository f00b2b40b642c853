#include "sync/routes/norm_book.h"

#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "tests/support/toy_plan.h"

namespace poseidon::norm_book_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing_support::send_by_factors;
using testing_support::toy_plan;

/// Layers of 6 (tensors of 3 and 3), 2 and 4 parameters in chunks of 4: chunks 0, 1 | 2 | 3.
Plan plan_of(NormScope scope) {
  Plan plan = toy_plan(2, 2, {6, 2, 4}, 4);
  plan.layers[0].tensors = {{"weight", 3, {}}, {"bias", 3, {}}};
  plan.norm_scope = scope;
  return plan;
}

TEST(NormBook, ALayerIsCompleteWithItsLastChunk) {
  NormBook book(plan_of(NormScope::kLayer));
  EXPECT_EQ(book.known(ChunkId(1)), -1);
  EXPECT_THAT(book.add_chunk(ChunkId(1), 0, {{4.0, 8.0}}).layers, IsEmpty());
  EXPECT_EQ(book.known(ChunkId(1)), 0);
  const auto complete = book.add_chunk(ChunkId(0), 0, {{1.0, 2.0}, {16.0, 32.0}});
  EXPECT_THAT(complete.layers, ElementsAre(LayerIndex(0)));
  EXPECT_EQ(complete.iteration, 0);
  EXPECT_FALSE(complete.all_gradients) << "nobody asks for the network's";
  EXPECT_THAT(book.totals(LayerIndex(0)),
              ElementsAre(TensorSquares{1.0, 2.0}, TensorSquares{20.0, 40.0}));
  EXPECT_THAT(book.add_chunk(ChunkId(3), 0, {{7.0, 0.0}}).layers, ElementsAre(LayerIndex(2)));
  EXPECT_THAT(book.add_chunk(ChunkId(3), 1, {{9.0, 0.0}}).layers, ElementsAre(LayerIndex(2)))
      << "layers go on by themselves";
}

TEST(NormBook, TheNetworkIsCompleteWithItsLastLayer) {
  Plan plan = plan_of(NormScope::kNetwork);
  send_by_factors(plan, LayerIndex(1), 2, 1);
  NormBook book(plan);
  for (Iteration i = 0; i < 3; ++i) {
    const auto scale = static_cast<double>(i + 1);
    EXPECT_THAT(book.add_layer(LayerIndex(1), i, {{2.0 * scale, 0.0}}).layers, IsEmpty());
    EXPECT_THAT(book.add_chunk(ChunkId(0), i, {{1.0 * scale, 0.0}, {4.0 * scale, 0.0}}).layers,
                IsEmpty());
    EXPECT_THAT(book.add_chunk(ChunkId(2), i, {{8.0 * scale, 0.0}}).layers, IsEmpty());
    const auto complete = book.add_chunk(ChunkId(1), i, {{16.0 * scale, 0.0}});
    EXPECT_THAT(complete.layers, ElementsAre(LayerIndex(0), LayerIndex(2)))
        << "not the one that no server owns";
    ASSERT_TRUE(complete.all_gradients);
    EXPECT_EQ(*complete.all_gradients, 31.0 * scale);
    EXPECT_EQ(book.all_gradients(), 31.0 * scale);
    EXPECT_EQ(complete.iteration, i);
  }
}

TEST(NormBook, AnyOrderOfArrivalGivesTheSameBits) {
  SplitMix64 random(7);
  std::vector<std::vector<TensorSquares>> squares(4, std::vector<TensorSquares>(1));
  squares[0].resize(2);
  for (auto& parts : squares) {
    for (TensorSquares& part : parts) part.gradient = std::pow(10.0, random.uniform() * 20);
  }
  std::vector<std::uint32_t> order = {0, 1, 2, 3};
  std::optional<double> expected;
  do {
    NormBook book(plan_of(NormScope::kNetwork));
    std::optional<double> all;
    for (const std::uint32_t c : order) {
      all = book.add_chunk(ChunkId(c), 0, squares[c]).all_gradients;
    }
    ASSERT_TRUE(all);
    if (!expected) expected = all;
    ASSERT_EQ(*all, *expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(NormBookDeathTest, OneIterationAfterTheOther) {
  NormBook book(plan_of(NormScope::kLayer));
  EXPECT_DEATH(book.add_chunk(ChunkId(2), 1, {{1.0, 0.0}}), "one iteration after the other");
  EXPECT_DEATH(book.add_chunk(ChunkId(0), 0, {{1.0, 0.0}}), "squares of each part");
  EXPECT_DEATH(book.add_layer(LayerIndex(0), 0, {{1.0, 0.0}}), "a layer that others wait for");
}

}  // namespace
}  // namespace poseidon::norm_book_test
