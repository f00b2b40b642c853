#include "coordinator/planning/cost/link_model.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::link_model_test {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kAlone = 1e9;                            // of a card, as it is measured
constexpr double kRate = kAlone * kSharedLinkEfficiency;  // of a card in a job

Calibration alike(std::size_t workers, std::size_t servers) {
  Calibration calibration;
  calibration.workers.assign(workers, {.send_bytes_per_s = kAlone, .receive_bytes_per_s = kAlone});
  calibration.servers.assign(servers, {.send_bytes_per_s = kAlone, .receive_bytes_per_s = kAlone});
  return calibration;
}

std::vector<double> equal_shares(std::size_t servers) {
  return std::vector<double>(servers, 1.0 / static_cast<double>(servers));
}

TEST(LinkModel, TheSameHostIsTheSameMachine) {
  Calibration calibration = alike(3, 2);
  calibration.servers[0].send_bytes_per_s = 3 * kAlone;
  const LinkModel cluster =
      make_link_model({"a:1", "b:1", ""}, {"a:2", "[::1]:2"}, {}, calibration);
  ASSERT_THAT(cluster.machines, SizeIs(4)) << "a, b, the worker without an address, ::1";
  EXPECT_EQ(cluster.machines[0].workers, 1u);
  EXPECT_THAT(cluster.machines[0].servers, ::testing::ElementsAre(0));
  EXPECT_DOUBLE_EQ(cluster.machines[0].nic.send_bytes_per_s, 3 * kRate) << "the faster of the two";
  EXPECT_DOUBLE_EQ(cluster.machines[0].nic.receive_bytes_per_s, kRate);
  EXPECT_THAT(cluster.machines[1].servers, IsEmpty());
  EXPECT_EQ(cluster.machines[3].workers, 0u);
}

TEST(LinkModel, OneMachineHasNoLinks) {
  const LinkModel cluster = make_link_model({"a:1", "a:2"}, {"a:3"}, {}, alike(2, 1));
  EXPECT_THAT(link_loads(cluster, {1.0}), IsEmpty());
}

// P workers and servers on P machines: each direction carries (P - 1) / P of a gradient up, as much
// of the parameters down, and P - 1 sets of factors. That is the design's formula, both directions
// together being the bytes that a node moves.
TEST(LinkModel, ASymmetricClusterIsOneLink) {
  const std::vector<std::string> workers = {"a:1", "b:1", "c:1", "d:1"};
  const std::vector<std::string> servers = {"a:2", "b:2", "c:2", "d:2"};
  const LinkModel cluster = make_link_model(workers, servers, {}, alike(4, 4));
  const std::vector<LinkLoad> links = link_loads(cluster, equal_shares(4));
  ASSERT_THAT(links, SizeIs(1));
  EXPECT_DOUBLE_EQ(links[0].push_s_per_byte, 0.75 / kRate);
  EXPECT_DOUBLE_EQ(links[0].pull_s_per_byte, 0.75 / kRate);
  EXPECT_DOUBLE_EQ(links[0].factor_s_per_byte, 3 / kRate);
}

TEST(LinkModel, ServersOnTheirOwnMachinesHaveLinksOfTheirOwn) {
  const LinkModel cluster =
      make_link_model({"a:1", "b:1", "c:1", "d:1"}, {"s:1", "t:1"}, {}, alike(4, 2));
  const std::vector<LinkLoad> links = link_loads(cluster, equal_shares(2));
  // Worker up (push 1) and down (pull 1), each with factors; server down (push 2) and up (pull 2).
  ASSERT_THAT(links, SizeIs(4));
  double most_pushed = 0;
  for (const LinkLoad& link : links) most_pushed = std::max(most_pushed, link.push_s_per_byte);
  EXPECT_DOUBLE_EQ(most_pushed, 2 / kRate) << "half of four gradients";
}

TEST(LinkModel, LinksAreBoundedAndKeepTheMostLoaded) {
  // The faster the machine, the more it serves: no link carries more of everything than another.
  std::vector<std::string> workers, servers;
  std::vector<double> shares;
  Calibration calibration = alike(32, 32);
  for (std::size_t i = 0; i < 32; ++i) {
    workers.push_back(std::to_string(i) + ":1");
    servers.push_back(std::to_string(i) + ":2");
    const double rate = kAlone * static_cast<double>(1 + i);
    calibration.workers[i] = calibration.servers[i] = {rate, rate};
    shares.push_back(static_cast<double>((1 + i) * (1 + i)) / 11440.0);  // the sum of squares
  }
  const std::vector<LinkLoad> links =
      link_loads(make_link_model(workers, servers, {}, calibration), shares);
  EXPECT_THAT(links, SizeIs(kMaxLinks));
  // The slowest machine pushes most and has most factors, the fastest serves most.
  EXPECT_NEAR(links[0].push_s_per_byte, 1 / kRate, 1e-3 / kRate);
  EXPECT_NEAR(links[1].pull_s_per_byte, 1 / kRate, 1e-3 / kRate);
  double factors = 0, served = 0;
  for (const LinkLoad& link : links) {
    factors = std::max(factors, link.factor_s_per_byte);
    served = std::max(served, link.push_s_per_byte + link.pull_s_per_byte);
  }
  EXPECT_DOUBLE_EQ(factors, 31 / kRate);
  EXPECT_GE(served, 31 * shares[31] / 32 / kRate);
}

TEST(Shares, EqualWhereServersAreAlike) {
  for (const auto& servers : {std::vector<std::string>{"a:2", "b:2"}, {"s:2", "t:2"}}) {
    const LinkModel cluster = make_link_model({"a:1", "b:1"}, servers, {}, alike(2, 2));
    EXPECT_THAT(free_bandwidth_shares(cluster, 1e6, 1e3), Each(0.5));
  }
}

TEST(Shares, AnExtraMachineThatOnlyServesTakesMore) {
  std::vector<std::string> workers, servers;
  for (int i = 0; i < 8; ++i) {
    workers.push_back(std::string(1, static_cast<char>('a' + i)) + ":1");
    servers.push_back(std::string(1, static_cast<char>('a' + i)) + ":2");
  }
  servers.emplace_back("extra:2");
  const LinkModel cluster = make_link_model(workers, servers, {}, alike(8, 9));
  const std::vector<double> shares = free_bandwidth_shares(cluster, 1e8, 0.0);
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1.0, 1e-9);
  // All NICs equally busy: 1 + 6 s = 8 x with 8 s + x = 1, so s = 7/70 and x = 14/70.
  EXPECT_NEAR(shares[0], 0.1, 1e-6);
  EXPECT_NEAR(shares[8], 0.2, 1e-6);
  const auto busiest = [&](const std::vector<double>& of) {
    double busy = 0;
    for (const LinkLoad& link : link_loads(cluster, of)) {
      busy = std::max(busy, link.push_s_per_byte + link.pull_s_per_byte);
    }
    return busy;
  };
  EXPECT_LT(busiest(shares), busiest(equal_shares(9)));
  // Factors fill the workers' NICs further, and the extra machine serves yet more.
  EXPECT_GT(free_bandwidth_shares(cluster, 1e8, 1e6)[8], shares[8]);
  // Their NICs full with them, it serves alone.
  EXPECT_NEAR(free_bandwidth_shares(cluster, 1e6, 1e9)[8], 1.0, 1e-9);
}

TEST(Shares, AFasterNicServesMore) {
  Calibration calibration = alike(4, 2);
  calibration.servers[1] = {4 * kAlone, 4 * kAlone};
  const LinkModel cluster =
      make_link_model({"a:1", "b:1", "c:1", "d:1"}, {"s:1", "t:1"}, {}, calibration);
  const std::vector<double> shares = free_bandwidth_shares(cluster, 1e6, 0.0);
  EXPECT_NEAR(shares[0], 0.2, 1e-6);
  EXPECT_NEAR(shares[1], 0.8, 1e-6);
}

TEST(Shares, NothingToServeOrNothingToChoose) {
  const LinkModel cluster = make_link_model({"a:1"}, {"a:2", "b:2"}, {}, alike(1, 2));
  EXPECT_THAT(free_bandwidth_shares(cluster, 0.0, 1.0), Each(0.5));
  const LinkModel one = make_link_model({"a:1"}, {"a:2"}, {}, alike(1, 1));
  EXPECT_THAT(free_bandwidth_shares(one, 1e6, 0.0), Each(1.0));
}

TEST(LinkLoads, WhoIsLedFromElsewhereLoadsBothLinks) {
  // Worker 1's leader is on another machine; the server is on a third one.
  const std::vector<WorkerRank> leaders = {WorkerRank(0), WorkerRank(0)};
  const std::vector<LinkLoad> links =
      link_loads(make_link_model({"a:1", "b:1"}, {"s:9"}, leaders, alike(2, 1)), {1.0});
  const std::vector<LinkLoad> one =
      link_loads(make_link_model({"a:1"}, {"s:9"}, {}, alike(1, 1)), {1.0});
  // a sends the sum up and worker 1's parameters down, and receives as much.
  ASSERT_EQ(links.size(), 1U);
  EXPECT_DOUBLE_EQ(links[0].push_s_per_byte, one[0].push_s_per_byte);
  EXPECT_DOUBLE_EQ(links[0].pull_s_per_byte, links[0].push_s_per_byte);
}

TEST(LinkLoads, AGroupGivesToServersOnce) {
  // Two machines of two workers and a server each.
  const std::vector<std::string> workers = {"a:1", "b:1", "a:2", "b:2"};
  const std::vector<std::string> servers = {"a:9", "b:9"};
  const std::vector<WorkerRank> leaders = {WorkerRank(0), WorkerRank(1), WorkerRank(0),
                                           WorkerRank(1)};
  const LinkModel all = make_link_model(workers, servers, {}, alike(4, 2));
  const LinkModel grouped = make_link_model(workers, servers, leaders, alike(4, 2));
  EXPECT_EQ(grouped.contributors, 2U);
  EXPECT_EQ(grouped.largest_group, 2U);
  const std::vector<LinkLoad> before = link_loads(all, {0.5, 0.5});
  const std::vector<LinkLoad> after = link_loads(grouped, {0.5, 0.5});
  ASSERT_EQ(before.size(), 1U);
  ASSERT_EQ(after.size(), 1U);
  EXPECT_DOUBLE_EQ(after[0].push_s_per_byte, before[0].push_s_per_byte / 2);
  EXPECT_DOUBLE_EQ(after[0].pull_s_per_byte, before[0].pull_s_per_byte / 2);
  EXPECT_DOUBLE_EQ(after[0].factor_s_per_byte, before[0].factor_s_per_byte)
      << "factors go to every worker";
}

}  // namespace
}  // namespace poseidon::link_model_test
