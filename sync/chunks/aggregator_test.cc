#include "sync/chunks/aggregator.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/random.h"
#include "common/wire/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::aggregator_test {
namespace {

/// More than two blocks, and no multiple of one.
constexpr std::size_t kElements = 5003;

std::vector<float> random_floats(SplitMix64& random) {
  std::vector<float> floats(kElements);
  for (float& value : floats) value = static_cast<float>(random.next() % 2000) * 1.1e-3f - 1.0f;
  return floats;
}

/// A copy in pieces of odd sizes, as a transport may deliver it: floats straddle them.
Bytes in_pieces(const std::vector<float>& floats, std::size_t piece_bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(floats.size() * sizeof(float));
  std::memcpy(owner->data(), floats.data(), owner->size());
  Bytes bytes;
  for (std::size_t at = 0; at < owner->size(); at += piece_bytes) {
    bytes.pieces.emplace_back(owner->data() + at, std::min(piece_bytes, owner->size() - at));
  }
  bytes.owner = std::move(owner);
  return bytes;
}

std::vector<float> drained(Aggregator& aggregator) {
  std::vector<float> sum;
  aggregator.drain([&sum](std::size_t first, std::size_t size, GradientTerms gradient) {
    EXPECT_EQ(first, sum.size());
    sum.resize(first + size);
    std::memcpy(sum.data() + first, gradient.last, size * sizeof(float));
    if (gradient.sum == nullptr) return;
    for (std::size_t i = 0; i < size; ++i) sum[first + i] = gradient.sum[i] + sum[first + i];
  });
  return sum;
}

TEST(Aggregator, SumsInRankOrderWhateverTheOrderOfArrivalAndThePieces) {
  SplitMix64 random(7);
  constexpr std::uint32_t kWorkers = 4;
  Aggregator aggregator(kElements, kWorkers);
  std::vector<std::uint32_t> arrival = {0, 1, 2, 3};
  do {
    std::vector<std::vector<float>> gradients;
    for (std::uint32_t r = 0; r < kWorkers; ++r) gradients.push_back(random_floats(random));
    std::vector<float> expected = gradients[0];
    for (std::uint32_t r = 1; r < kWorkers; ++r) {
      for (std::size_t i = 0; i < kElements; ++i) expected[i] += gradients[r][i];
    }
    for (const std::uint32_t r : arrival) {
      EXPECT_FALSE(aggregator.complete());
      aggregator.add(r, in_pieces(gradients[r], 1 + random.next() % 9000));
    }
    ASSERT_TRUE(aggregator.complete());
    const std::vector<float> sum = drained(aggregator);
    ASSERT_EQ(sum.size(), kElements);
    EXPECT_EQ(std::memcmp(sum.data(), expected.data(), kElements * sizeof(float)), 0);
    EXPECT_EQ(aggregator.pending_bytes(), 0);
    EXPECT_EQ(aggregator.contributed(), 0U) << "the next round begins";
  } while (std::ranges::next_permutation(arrival).found);
}

TEST(Aggregator, SumsSixteenBitContributionsInFloat32) {
  for (const auto type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    SplitMix64 random(11);
    constexpr std::uint32_t kWorkers = 4;
    Aggregator aggregator(kElements, kWorkers, type);
    std::vector<Bytes> payloads;
    std::vector<float> expected(kElements);
    for (std::uint32_t r = 0; r < kWorkers; ++r) {
      const std::vector<float> gradient = random_floats(random);
      auto encoded = std::make_shared<std::vector<std::byte>>(kElements * 2);
      encode_payload(type, gradient, *encoded);
      Bytes payload;
      for (std::size_t at = 0; at < encoded->size(); at += 4097) {
        payload.pieces.emplace_back(encoded->data() + at,
                                    std::min<std::size_t>(4097, encoded->size() - at));
      }
      payload.owner = encoded;
      std::vector<float> wide(kElements);
      copy_payload(payload, wide, type);
      for (std::size_t i = 0; i < kElements; ++i)
        expected[i] = r == 0 ? wide[i] : expected[i] + wide[i];
      payloads.push_back(std::move(payload));
    }
    for (const std::uint32_t r : {2U, 0U, 3U, 1U}) aggregator.add(r, payloads[r]);
    const std::vector<float> sum = drained(aggregator);
    EXPECT_EQ(std::memcmp(sum.data(), expected.data(), kElements * sizeof(float)), 0);
  }
}

TEST(Aggregator, OneWorkerNeedsNoSum) {
  SplitMix64 random(8);
  Aggregator aggregator(kElements, 1);
  EXPECT_EQ(aggregator.memory_bytes(), 0);
  const std::vector<float> gradient = random_floats(random);
  aggregator.add(0, in_pieces(gradient, 7));
  EXPECT_EQ(drained(aggregator), gradient);
}

TEST(Aggregator, HoldsWhatWaitsAndLetsItGo) {
  SplitMix64 random(9);
  Aggregator aggregator(kElements, 3);
  Bytes last = in_pieces(random_floats(random), 4096);
  const std::weak_ptr<const void> held = last.owner;
  aggregator.add(2, last);
  last = Bytes{};
  EXPECT_EQ(aggregator.pending_bytes(), static_cast<std::int64_t>(kElements * sizeof(float)));
  EXPECT_FALSE(held.expired());
  aggregator.add(0, in_pieces(random_floats(random), 4096));
  EXPECT_EQ(aggregator.pending_bytes(), static_cast<std::int64_t>(kElements * sizeof(float)))
      << "what is in order is summed at once";
  aggregator.add(1, in_pieces(random_floats(random), 4096));
  drained(aggregator);
  EXPECT_TRUE(held.expired());
}

TEST(Aggregator, SettlesToWhatItWouldHaveDrained) {
  for (const std::uint32_t workers : {1u, 2u, 3u}) {
    Aggregator drained(5, workers), settled(5, workers, ElementType::kFloat32, /*settles=*/true);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<float>> gradients;
      for (std::uint32_t rank = 0; rank < workers; ++rank) {
        gradients.push_back({0.1f, -3.0f, 1e-9f, 1e9f, 0.3f});
        for (float& g : gradients.back()) g *= static_cast<float>(rank + 1) * 0.7f;
      }
      for (std::uint32_t rank = 0; rank < workers; ++rank) {
        Bytes bytes;
        bytes.pieces.push_back(as_payload(gradients[rank]));
        drained.add(rank, bytes);
        settled.add(rank, bytes);
      }
      std::vector<float> expected;
      drained.drain([&](std::size_t, std::size_t size, GradientTerms gradient) {
        for (std::size_t i = 0; i < size; ++i) {
          float last;
          std::memcpy(&last, gradient.last + i * sizeof last, sizeof last);
          expected.push_back(gradient.sum == nullptr ? last : gradient.sum[i] + last);
        }
      });
      const std::span<const float> sum = settled.settle();
      EXPECT_EQ(std::vector<float>(sum.begin(), sum.end()), expected);
      EXPECT_EQ(settled.pending_bytes(), 0) << "nothing that arrived is kept";
      EXPECT_TRUE(settled.has(0)) << "the round goes on until the step";
      settled.next_round();
      EXPECT_FALSE(settled.has(0));
    }
  }
}

}  // namespace
}  // namespace poseidon::aggregator_test
