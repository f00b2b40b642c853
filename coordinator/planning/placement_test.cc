#include "coordinator/planning/placement.h"

#include <algorithm>
#include <set>

#include "common/base/random.h"
#include "common/plan/chunking.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::placement_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::int64_t> loads_of(const std::vector<std::int64_t>& bytes,
                                   const std::vector<ServerIndex>& owners, std::uint32_t servers) {
  std::vector<std::int64_t> loads(servers, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) loads[owners[i].value()] += bytes[i];
  return loads;
}

TEST(Placement, NoChunks) { EXPECT_THAT(place_chunks({}, 3), IsEmpty()); }

TEST(Placement, FromTheLastToTheLeastLoaded) {
  // 8 -> 0, 7 -> 1, 6 -> 1 (7 < 8), 5 -> 0 (8 < 13), 4 -> 0 (13 = 13, the lower).
  EXPECT_THAT(
      place_chunks({4, 5, 6, 7, 8}, 2),
      ElementsAre(ServerIndex(0), ServerIndex(0), ServerIndex(1), ServerIndex(1), ServerIndex(0)));
  // 4 -> 0, 8 -> 1, 6 -> 0 (4 < 8), 5 -> 1 (8 < 10).
  EXPECT_THAT(place_chunks({5, 6, 8, 4}, 2),
              ElementsAre(ServerIndex(1), ServerIndex(0), ServerIndex(1), ServerIndex(0)));
}

TEST(Placement, TiesGoToTheLowerServer) {
  EXPECT_THAT(place_chunks({5, 5, 5, 5}, 3),
              ElementsAre(ServerIndex(0), ServerIndex(2), ServerIndex(1), ServerIndex(0)));
}

TEST(Placement, ALargeLayerIsSpreadOverAllServers) {
  for (const std::uint32_t servers : {1u, 2u, 3u, 7u, 64u}) {
    std::vector<std::int64_t> bytes;
    std::vector<int> layer_of;
    const std::vector<std::int64_t> layers = {500, 25000, 400000, 5000, 3000000, 10000000, 4096};
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      for (const ChunkRange& chunk : split_into_chunks(layers[layer], 65536)) {
        bytes.push_back(chunk.elements * kElementBytes);
        layer_of.push_back(static_cast<int>(layer));
      }
    }
    const std::vector<ServerIndex> owners = place_chunks(bytes, servers);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      std::set<ServerIndex> used;
      std::size_t full = 0;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (layer_of[i] != static_cast<int>(layer)) continue;
        used.insert(owners[i]);
        if (bytes[i] == 65536) ++full;
      }
      EXPECT_GE(used.size(), std::min<std::size_t>(full, servers)) << "layer " << layer;
    }
  }
}

/// All chunks, and those of the last layers only, wherever one draws the line.
TEST(Placement, IsBalancedWithinOneChunkAndDeterministic) {
  SplitMix64 random(42);
  for (int round = 0; round < 50; ++round) {
    const auto servers = static_cast<std::uint32_t>(1 + random.below(16));
    std::vector<std::int64_t> bytes(random.below(300));
    for (auto& value : bytes) value = static_cast<std::int64_t>(4 + random.below(2 << 20));
    const std::vector<ServerIndex> owners = place_chunks(bytes, servers);
    std::vector<std::int64_t> loads(servers, 0);
    std::int64_t largest = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      loads[owners[i].value()] += bytes[i];
      largest = std::max(largest, bytes[i]);
      const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
      // The last chunk given to the fullest server found it the emptiest.
      ASSERT_LE(*most - *least, largest) << "round " << round << " from chunk " << i;
    }
    EXPECT_EQ(owners, place_chunks(bytes, servers));
  }
}

TEST(Placement, EqualSharesAreNoShares) {
  const std::vector<std::int64_t> bytes = {4, 5, 6, 7, 8, 8, 3};
  EXPECT_EQ(place_chunks(bytes, std::vector<double>{0.2, 0.2, 0.2}), place_chunks(bytes, 3));
}

TEST(Placement, SharesAreKeptToOneChunk) {
  SplitMix64 random(43);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> shares(1 + random.below(16));
    double total_share = 0;
    for (double& share : shares) total_share += share = static_cast<double>(random.below(4));
    if (total_share == 0) shares[0] = total_share = 1;
    std::vector<std::int64_t> bytes(1 + random.below(300));
    std::int64_t total = 0;
    for (auto& value : bytes) total += value = static_cast<std::int64_t>(4 + random.below(2 << 20));
    const auto loads =
        loads_of(bytes, place_chunks(bytes, shares), static_cast<std::uint32_t>(shares.size()));
    for (std::size_t i = 0; i < shares.size(); ++i) {
      if (shares[i] == 0) {
        EXPECT_EQ(loads[i], 0);
      }
      // Whoever took the last chunk beyond its share was, with it, the first to be done.
      const double fair = static_cast<double>(total) * shares[i] / total_share;
      const double largest = static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
      EXPECT_LE(
          static_cast<double>(loads[i]),
          fair + largest * (1.0 + shares[i] * static_cast<double>(shares.size()) / total_share))
          << "round " << round << " server " << i;
    }
  }
}

}  // namespace
}  // namespace poseidon::placement_test
