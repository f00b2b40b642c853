// Every instruction set gives the baseline's bits, for sizes that fill no vector too.

#include "worker/engine/cpu/vector_loops.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace poseidon::vector_loops_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> values(std::uint64_t seed, std::int64_t count, bool special) {
  SplitMix64 random(seed);
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& value : result) {
    value = static_cast<float>(static_cast<int>(random.below(9)) - 4) / 4.0f;  // ties are common
    if (!special) continue;
    const auto kind = random.below(12);
    if (kind == 0) value = kNan;
    if (kind == 1) value = -kInfinity;
    if (kind == 2) value = -0.0f;
  }
  return result;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

struct Outcome {
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<double>> sums;
  std::vector<std::int32_t> chosen;
};

Outcome run(const VectorLoops& loops, std::int64_t rows, std::int64_t lanes) {
  Outcome outcome;
  const std::int64_t size = rows * lanes + 5;
  const auto x = values(1, size, true), dy = values(2, size, false);
  std::vector<float> out(x.size());
  const auto keep = [&] { outcome.floats.push_back(out); };
  loops.relu(x.data(), out.data(), size);
  keep();
  loops.relu_gradient(x.data(), dy.data(), out.data(), size);
  keep();
  loops.sum(x.data(), dy.data(), out.data(), size);
  keep();
  const auto finite = values(3, size, false);
  const auto a = values(4, lanes, false), b = values(5, lanes, false), c = values(6, lanes, false);
  std::vector<double> means(a.begin(), a.end()), first(means.size(), 0.5), second(means);
  loops.moments(finite.data(), rows, lanes, first.data(), second.data());
  loops.gradient_moments(finite.data(), dy.data(), means.data(), rows, lanes, first.data(),
                         second.data());
  outcome.sums = {first, second};
  loops.normalise({a.data(), b.data(), c.data()}, finite.data(), rows, lanes, out.data());
  keep();
  loops.normalise_gradient({a.data(), b.data(), c.data(), a.data()}, finite.data(), dy.data(), rows,
                           lanes, out.data());
  keep();
  const MaxWindow window = {.height = 5,
                            .width = 4,
                            .out_height = 3,
                            .out_width = 2,
                            .kernel_h = 3,
                            .kernel_w = 3,
                            .stride_h = 2,
                            .stride_w = 2,
                            .pad_h = 1,
                            .pad_w = 1};
  const auto image = values(7, 20 * lanes, true), gradient = values(8, 6 * lanes, false);
  std::vector<float> pooled(gradient.size()), spread(image.size());
  outcome.chosen.resize(gradient.size());
  loops.max_pool(window, image.data(), lanes, pooled.data(), outcome.chosen.data());
  loops.max_pool_gradient(window, gradient.data(), outcome.chosen.data(), lanes, spread.data());
  outcome.floats.push_back(pooled);
  outcome.floats.push_back(spread);
  return outcome;
}

TEST(VectorLoops, AllInstructionSetsGiveTheSameBits) {
  for (const std::int64_t lanes : {8, 16}) {
    for (const std::int64_t rows : {0, 1, 2, 33}) {
      const Outcome wanted = run(*supported_vector_loops().front(), rows, lanes);
      for (const VectorLoops* loops : supported_vector_loops()) {
        SCOPED_TRACE(::testing::Message() << loops->name << ", " << rows << " rows of " << lanes);
        const Outcome got = run(*loops, rows, lanes);
        for (std::size_t i = 0; i < wanted.floats.size(); ++i) {
          EXPECT_TRUE(same_bits(got.floats[i], wanted.floats[i])) << "output " << i;
        }
        for (std::size_t i = 0; i < wanted.sums.size(); ++i) {
          EXPECT_TRUE(same_bits(got.sums[i], wanted.sums[i])) << "sum " << i;
        }
        EXPECT_EQ(got.chosen, wanted.chosen);
      }
    }
  }
}

TEST(VectorLoops, ReluKeepsNan) {
  const std::vector<float> x = {-1.0f, 0.0f, 2.0f, kNan, -kInfinity};
  std::vector<float> out(x.size());
  vector_loops().relu(x.data(), out.data(), 5);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[2], 2.0f);
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_EQ(out[4], 0.0f);
}

}  // namespace
}  // namespace poseidon::vector_loops_test
