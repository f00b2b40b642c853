#include "coordinator/planning/planner.h"

#include <algorithm>
#include <set>

#include "common/plan/plan_pin.h"
#include "coordinator/planning/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::planner_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PlannerLayer fully_connected(std::int64_t m, std::int64_t n) {
  return {.name = "fc",
          .type = "fully_connected",
          .shape = {m, n},
          .parameters = m * n + m,
          .is_fully_connected = true};
}

NodeNumbers alone(std::uint32_t workers, std::uint32_t servers) {
  return {.workers = workers, .servers = servers, .contributors = workers};
}

double million_floats(std::int64_t bytes) { return static_cast<double>(bytes) / 4e6; }

std::vector<Scheme> schemes(const Plan& plan) {
  std::vector<Scheme> schemes;
  for (const PlanLayer& layer : plan.layers) schemes.push_back(layer.scheme);
  return schemes;
}

struct KnownCost {
  std::int64_t m, n, batch;
  std::uint32_t nodes;
  double ps, sfb;     // million floats, as printed in DESIGN section 7
  double half_digit;  // half of the last printed digit
  Scheme choice;      // by bytes
};

class KnownCosts : public ::testing::TestWithParam<KnownCost> {};

TEST_P(KnownCosts, AgreeWithTheDesign) {
  const KnownCost& known = GetParam();
  const SchemeCosts costs =
      scheme_costs(fully_connected(known.m, known.n), known.batch, alone(known.nodes, known.nodes));
  EXPECT_TRUE(costs.sfb_applies);
  EXPECT_NEAR(million_floats(costs.ps_bytes), known.ps, known.half_digit);
  EXPECT_NEAR(million_floats(costs.sfb_bytes), known.sfb, known.half_digit);
  EXPECT_EQ(choose_scheme(fully_connected(known.m, known.n), costs, {}).scheme, known.choice);
}

INSTANTIATE_TEST_SUITE_P(
    Design, KnownCosts,
    ::testing::Values(KnownCost{4096, 25088, 32, 8, 359.7, 13.1, 0.051, Scheme::kSfb},
                      KnownCost{4096, 25088, 32, 32, 398.2, 57.9, 0.051, Scheme::kSfb},
                      KnownCost{4096, 4096, 32, 8, 58.72, 3.67, 0.0051, Scheme::kSfb},
                      KnownCost{21841, 4096, 32, 32, 346.7, 51.5, 0.051, Scheme::kSfb},
                      KnownCost{1000, 1024, 128, 4, 3.07, 1.55, 0.0051, Scheme::kSfb},
                      KnownCost{1000, 1024, 128, 8, 3.58, 3.63, 0.0051, Scheme::kPs},
                      KnownCost{4096, 4096, 256, 16, 62.91, 62.91, 0.0051, Scheme::kSfb},
                      KnownCost{1000, 2048, 32, 32, 7.94, 6.05, 0.0051, Scheme::kSfb}));

TEST(SchemeCosts, TheTieIsExact) {
  const SchemeCosts costs = scheme_costs(fully_connected(4096, 4096), 256, alone(16, 16));
  EXPECT_EQ(costs.ps_bytes, costs.sfb_bytes);
  const SchemeChoice choice = choose_scheme(fully_connected(4096, 4096), costs, {});
  EXPECT_EQ(choice.scheme, Scheme::kSfb);
  EXPECT_THAT(choice.reason, HasSubstr("as many bytes either way"));
}

TEST(SchemeCosts, OneWorkerAndOneServerSendNothing) {
  const SchemeCosts costs = scheme_costs(fully_connected(10, 5), 32, alone(1, 1));
  EXPECT_EQ(costs.ps_bytes, 0);
  EXPECT_EQ(costs.sfb_bytes, 0);
}

TEST(SchemeCosts, AnythingElseHasNoSfbCost) {
  const PlannerLayer conv{
      .name = "c", .type = "convolution", .shape = {20, 1, 5, 5}, .parameters = 520};
  const SchemeCosts costs = scheme_costs(conv, 32, alone(4, 2));
  EXPECT_FALSE(costs.sfb_applies);
  EXPECT_EQ(costs.sfb_bytes, 0);
  EXPECT_EQ(costs.ps_bytes, 2 * 520 * 4 / 2 * 4);
}

TEST(SchemeCosts, SixteenBitsHalveWhatTheParameterServerMoves) {
  const PlannerLayer fc = fully_connected(4096, 25088);
  const SchemeCosts full = scheme_costs(fc, 32, alone(8, 8));
  for (const auto type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    const SchemeCosts half = scheme_costs(fc, 32, alone(8, 8), type);
    EXPECT_EQ(half.ps_bytes, full.ps_bytes / 2);
    EXPECT_EQ(half.sfb_bytes, full.sfb_bytes) << "factors travel in float32";
  }
}

TEST(SchemeCosts, HugeValuesSaturate) {
  const SchemeCosts costs = scheme_costs(
      fully_connected(std::int64_t{1} << 31, std::int64_t{1} << 31), INT64_MAX / 2, alone(64, 1));
  EXPECT_EQ(costs.ps_bytes, INT64_MAX);
  EXPECT_EQ(costs.sfb_bytes, INT64_MAX);
}

TEST(SchemeCosts, GroupsCountAsOneAtTheServersAndAsManyForFactors) {
  const PlannerLayer fc = fully_connected(1000, 500);
  // Two machines of four workers and a server each: as two workers by PS; by SFB each machine's
  // four send their factors to the other's four.
  const SchemeCosts costs = scheme_costs(fc, 8, {.workers = 8, .servers = 2, .contributors = 2});
  EXPECT_EQ(costs.ps_bytes, scheme_costs(fc, 8, alone(2, 2)).ps_bytes);
  EXPECT_EQ(costs.sfb_bytes, 2 * 8 * (1000 + 500) * 4 * 16);
}

PlannerInput lenet_like() {
  return {.layers = {{"conv1", "convolution", {20, 1, 5, 5}, 520, false},
                     {"conv2", "convolution", {50, 20, 5, 5}, 25050, false},
                     {"ip1", "fully_connected", {500, 800}, 400500, true},
                     {"ip2", "fully_connected", {10, 500}, 5010, true}},
          .batch_size = 32,
          .epoch = Epoch(3),
          .worker_addresses = {"", "", "", ""},
          .server_addresses = {"127.0.0.1:1", "127.0.0.1:2"},
          .sync = {.scheme = "auto", .cost = "bytes", .consistency = "bsp", .chunk_bytes = 65536}};
}

TEST(Planner, PlansLeNet) {
  const absl::StatusOr<Plan> plan = make_plan(lenet_like());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->epoch, Epoch(3));
  EXPECT_EQ(plan->workers(), 4u);
  EXPECT_EQ(plan->servers(), 2u);
  ASSERT_EQ(plan->layers.size(), 4u);
  // 16384 elements a chunk: conv1 1, conv2 2, ip2 1. ip1 goes by SFB: no server owns it.
  EXPECT_EQ(plan->chunks.size(), 4u);
  EXPECT_THAT(schemes(*plan), ElementsAre(Scheme::kPs, Scheme::kPs, Scheme::kSfb, Scheme::kPs));
  EXPECT_THAT(plan->layers[0].reason, HasSubstr("convolution layer has no factors"));
  EXPECT_THAT(plan->layers[2].reason, HasSubstr("fewer bytes: SFB, 998 kB"));
  EXPECT_THAT(plan->layers[3].reason, HasSubstr("fewer bytes: PS"));
  std::int64_t load[2] = {0, 0};
  for (const PlanChunk& chunk : plan->chunks) load[chunk.server.value()] += chunk.elements;
  EXPECT_LE(std::abs(load[0] - load[1]), 16384);
}

TEST(Planner, TheWireTypeOfTheJobIsThePlans) {
  PlannerInput input = lenet_like();
  input.sync.scheme = "ps";
  EXPECT_EQ(make_plan(input)->wire_type, ElementType::kFloat32);
  const std::int64_t full = make_plan(input)->layers[2].ps_bytes;
  input.sync.wire_dtype = ElementType::kBfloat16;
  const absl::StatusOr<Plan> plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->wire_type, ElementType::kBfloat16);
  EXPECT_EQ(plan->layers[2].ps_bytes, full / 2);
  EXPECT_EQ(plan->chunks.size(), 29u) << "chunks are the same whatever the wire type";
}

TEST(Planner, AskingForOneSchemeIsNamedInTheReason) {
  PlannerInput input = lenet_like();
  input.sync.scheme = "ps";
  absl::StatusOr<Plan> plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(schemes(*plan), ::testing::Each(Scheme::kPs));
  EXPECT_EQ(plan->chunks.size(), 29u);
  EXPECT_THAT(plan->layers[2].reason, HasSubstr("sync.scheme asks for it: PS"));
  input.sync.scheme = "sfb";
  plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(schemes(*plan), ElementsAre(Scheme::kPs, Scheme::kPs, Scheme::kSfb, Scheme::kSfb));
  EXPECT_THAT(plan->layers[0].reason, HasSubstr("convolution layer has no factors"));
  EXPECT_THAT(plan->layers[3].reason, HasSubstr("sync.scheme asks for it: SFB"));
}

TEST(Planner, SchemesByLayerLeaveTheOthersAuto) {
  PlannerInput input = lenet_like();
  input.sync.layer_schemes = {{"ip2", "sfb"}, {"conv1", "ps"}};
  absl::StatusOr<Plan> plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(schemes(*plan), ElementsAre(Scheme::kPs, Scheme::kPs, Scheme::kSfb, Scheme::kSfb));
  input.sync.layer_schemes = {{"ip1", "ps"}, {"conv2", "auto"}};
  plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(schemes(*plan), ::testing::Each(Scheme::kPs));
}

TEST(Planner, SchemesOfLayersThatCannotHaveThemAreRefused) {
  PlannerInput input = lenet_like();
  input.sync.layer_schemes = {{"ip3", "sfb"}};
  EXPECT_THAT(std::string(make_plan(input).status().message()),
              AllOf(HasSubstr("sync.scheme.ip3: the network has no layer"),
                    HasSubstr("did you mean \"ip1\"?")));
  input.sync.layer_schemes = {{"conv2", "sfb"}};
  EXPECT_THAT(std::string(make_plan(input).status().message()),
              AllOf(HasSubstr("sync.scheme.conv2: \"sfb\" needs a fully connected layer"),
                    HasSubstr("use \"ps\" or \"auto\"")));
}

TEST(Planner, OneWorkerHasNothingToSend) {
  PlannerInput input = lenet_like();
  input.worker_addresses.resize(1);
  input.server_addresses.resize(1);
  const absl::StatusOr<Plan> plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const PlanLayer& layer : plan->layers) EXPECT_EQ(layer.ps_bytes + layer.sfb_bytes, 0);
  EXPECT_THAT(plan->layers[2].reason, HasSubstr("one worker"));
}

TEST(Planner, WithSfbLayersOnlyTheServersOwnNothing) {
  PlannerInput input = lenet_like();
  input.layers.erase(input.layers.begin(), input.layers.begin() + 2);
  input.sync.scheme = "sfb";
  const absl::StatusOr<Plan> plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->chunks.empty());
}

/// The plan of lenet_like() with all layers by PS but ip2, as a job would carry it.
nlohmann::json pin_of_lenet(std::uint32_t servers) {
  PlannerInput input = lenet_like();
  input.server_addresses.resize(servers, "127.0.0.1:3");
  input.sync.layer_schemes = {{"ip1", "ps"}, {"ip2", "sfb"}};
  const nlohmann::json plan = nlohmann::json::parse(plan_to_json(*make_plan(input)));
  return plan_pin_to_json(*plan_pin_from_json(plan, "plan.json"));
}

TEST(Planner, APinnedPlanIsTakenExactly) {
  PlannerInput input = lenet_like();
  input.sync.plan = pin_of_lenet(2);
  for (auto& chunk : input.sync.plan["chunks"]) chunk["server"] = 1;
  input.sync.chunk_bytes = 4096;  // the pin's chunks stand, whatever the job would cut now
  const absl::StatusOr<Plan> plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(schemes(*plan), ElementsAre(Scheme::kPs, Scheme::kPs, Scheme::kPs, Scheme::kSfb));
  EXPECT_THAT(plan->layers[2].reason, HasSubstr("sync.plan asks for it: PS"));
  EXPECT_EQ(plan->chunks.size(), 28u);
  for (const PlanChunk& chunk : plan->chunks) EXPECT_EQ(chunk.server, ServerIndex(1));
}

TEST(Planner, APinsSizeOfChunksIsKeptUnlessTheJobGivesOne) {
  PlannerInput input = lenet_like();
  input.sync.chunk_bytes.reset();
  input.sync.plan = pin_of_lenet(3);  // for other servers: the chunks are cut anew
  input.sync.plan["chunk_bytes"] = 32768;
  const absl::StatusOr<Plan> plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->chunk_bytes, 32768);
  for (const PlanChunk& chunk : plan->chunks) EXPECT_LE(chunk.elements, 8192);
  input.sync.plan["chunk_bytes"] = 0;
  EXPECT_EQ(make_plan(input)->chunk_bytes, kDefaultChunkBytes);
  input.sync.chunk_bytes = 4096;
  EXPECT_EQ(make_plan(input)->chunk_bytes, 4096);
}

TEST(Planner, APinForOtherServersKeepsItsSchemesOnly) {
  PlannerInput input = lenet_like();
  input.sync.plan = pin_of_lenet(3);
  const absl::StatusOr<Plan> plan = make_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layers[3].scheme, Scheme::kSfb);
  std::int64_t load[2] = {0, 0};
  for (const PlanChunk& chunk : plan->chunks) load[chunk.server.value()] += chunk.elements;
  EXPECT_LE(std::abs(load[0] - load[1]), 16384);
}

TEST(Planner, APinOfAnotherNetworkIsRefused) {
  const PlannerInput good = lenet_like();
  const auto message_with = [&](auto change) {
    PlannerInput input = good;
    input.sync.plan = pin_of_lenet(2);
    change(input.sync.plan);
    return std::string(make_plan(input).status().message());
  };
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin["layers"][0]["name"] = "conv0"; }),
              HasSubstr("parameter layer 1 is \"conv1\" in the network and \"conv0\" in the plan"));
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin["layers"].erase(3); }),
              HasSubstr("parameter layer 4 is \"ip2\" in the network and nothing in the plan"));
  EXPECT_THAT(message_with([](nlohmann::json& pin) {
                pin["layers"][3]["shape"] = {5, 1000};
              }),
              HasSubstr("layer ip2 is 10x500"));
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin["layers"][1]["scheme"] = "sfb"; }),
              HasSubstr("layer conv2 goes by SFB there"));
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin["chunks"][3]["offset"] = 1; }),
              HasSubstr("plan: chunk 3"));
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin = "plan.json"; }), HasSubstr("sync.plan"));
}

TEST(Planner, APinWhoseChunksDoNotFitIsRefusedBeforeTheJobRuns) {
  const std::vector<PlannerLayer> layers = lenet_like().layers;
  const auto message_with = [&](auto change) {
    SyncSpec sync;
    sync.plan = pin_of_lenet(2);
    change(sync.plan);
    return std::string(check_sync(layers, sync).message());
  };
  EXPECT_EQ(message_with([](nlohmann::json&) {}), "");
  const auto refused =
      AllOf(HasSubstr("sync.plan: its chunks do not fit"), HasSubstr("remove \"chunks\""));
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin["layers"][2]["scheme"] = "sfb"; }),
              refused);
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin["layers"][3]["scheme"] = "ps"; }),
              refused);
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin["chunks"][0]["server"] = 2; }), refused);
  EXPECT_THAT(message_with([](nlohmann::json& pin) { pin["chunks"].erase(0); }), refused);
  EXPECT_EQ(message_with([](nlohmann::json& pin) {
              pin["layers"][2]["scheme"] = "sfb";
              pin.erase("chunks");
            }),
            "");
}

TEST(Planner, RefusesWhatCannotBePlanned) {
  PlannerInput input = lenet_like();
  input.worker_addresses.clear();
  EXPECT_EQ(make_plan(input).status().code(), absl::StatusCode::kInvalidArgument);
  input = lenet_like();
  input.server_addresses.clear();
  EXPECT_EQ(make_plan(input).status().code(), absl::StatusCode::kInvalidArgument);
  input = lenet_like();
  input.sync.chunk_bytes = 0;
  EXPECT_THAT(make_plan(input).status().ToString(), HasSubstr("sync.chunk_bytes"));
  input = lenet_like();
  input.layers[1].parameters = 0;
  EXPECT_THAT(make_plan(input).status().ToString(), HasSubstr("conv2"));
  input = lenet_like();
  input.layers[2].shape = {400000};
  EXPECT_THAT(make_plan(input).status().ToString(), HasSubstr("ip1"));
  input = lenet_like();
  input.layers.clear();
  EXPECT_THAT(make_plan(input).status().ToString(), HasSubstr("nothing to train"));
}

// ---- local aggregation ----

std::vector<WorkerRank> ranks(std::initializer_list<std::uint32_t> values) {
  return {values.begin(), values.end()};
}

PlannerInput on_two_machines() {
  PlannerInput input = lenet_like();
  input.worker_addresses = {"a:1", "b:1", "a:2", "b:2"};
  input.server_addresses = {"a:9", "b:9"};
  return input;
}

TEST(LocalGroups, AreThoseWhoShareAMachine) {
  EXPECT_EQ(group_by_machine({"a:1", "b:1", "a:2", "c:1"}, {"a:9"}), ranks({0, 1, 0, 3}));
  EXPECT_EQ(group_by_machine({"a:1", "a:2"}, {"b:9"}), ranks({0, 0}));
  EXPECT_EQ(group_by_machine({"a:1", "a:2"}, {"a:8", "a:9"}), ranks({})) << "nothing travels";
  EXPECT_EQ(group_by_machine({"a:1", "b:1", "a:2", "c:1"}, {"a:9", "b:9"}), ranks({0, 1, 0, 3}));
  EXPECT_EQ(group_by_machine({"a:1", "b:1", "b:2", "a:2"}, {"s:9"}), ranks({0, 1, 1, 0}));
  EXPECT_EQ(group_by_machine({"a:1", "b:1"}, {"s:9"}), ranks({})) << "nobody shares";
  EXPECT_EQ(group_by_machine({"", "", "a:1", "a:2"}, {"s:9"}), ranks({0, 1, 2, 2}))
      << "who listens nowhere is alone";
  EXPECT_EQ(groups_text(ranks({0, 1, 0, 3, 3})), "workers 0, 2 and workers 3, 4");
}

TEST(RankOrder, PutsMachinesTogetherAndTheFullestFirst) {
  using Order = std::vector<std::size_t>;
  EXPECT_EQ(rank_order({"a:1", "b:1", "c:1"}), (Order{0, 1, 2}));
  EXPECT_EQ(rank_order({"a:1", "b:1", "a:2", "b:2"}), (Order{0, 2, 1, 3}));
  EXPECT_EQ(rank_order({"a:1", "b:1", "c:1", "b:2", "c:2"}), (Order{1, 3, 2, 4, 0}));
  EXPECT_EQ(rank_order({"", "b:1", "", "b:2"}), (Order{1, 3, 0, 2}));
  EXPECT_EQ(rank_order({}), Order{});
}

TEST(RankOrder, GivesTheSameGroupsWhoeverCameFirst) {
  std::vector<std::string> workers = {"a:1", "a:2", "b:1", "b:2", "b:3", "c:1"};
  std::set<std::vector<WorkerRank>> groups;
  do {
    std::vector<std::string> by_rank;
    for (const std::size_t next : rank_order(workers)) by_rank.push_back(workers[next]);
    groups.insert(group_by_machine(by_rank, {"a:9"}));
  } while (std::next_permutation(workers.begin(), workers.end()));
  EXPECT_THAT(groups, ElementsAre(ranks({0, 0, 0, 3, 3, 5})));
}

TEST(RankOrder, FillsGivenGroupsFromOneMachineEach) {
  using Order = std::vector<std::size_t>;
  const std::vector<WorkerRank> pairs = ranks({0, 1, 0, 1});
  EXPECT_EQ(rank_order_for(pairs, {"a:1", "b:1", "b:2", "a:2"}), (Order{0, 1, 3, 2}));
  EXPECT_EQ(rank_order_for(ranks({0, 1, 1, 1}), {"a:1", "b:1", "b:2", "b:3"}), (Order{0, 1, 2, 3}));
  EXPECT_EQ(rank_order_for(ranks({0, 1, 1, 1}), {"b:1", "b:2", "b:3", "a:1"}), (Order{3, 0, 1, 2}));
  EXPECT_EQ(rank_order_for(pairs, {"a:1", "b:1", "c:1", "d:1"}), (Order{0, 2, 1, 3}))
      << "no machine has two: everybody has a place all the same";
}

TEST(Planner, GroupsWorkersOfOneMachine) {
  const auto plan = make_plan(on_two_machines());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->leaders, ranks({0, 1, 0, 1}));
  EXPECT_EQ(plan->layers[0].ps_bytes, 2 * 520 * 2 / 2 * 4) << "two contributors, two servers";
}

TEST(Planner, GroupsNobodyWhereTheJobForbidsItOrNormsAreNeeded) {
  PlannerInput input = on_two_machines();
  input.sync.local_aggregation = false;
  EXPECT_EQ(make_plan(input)->leaders, ranks({}));
  input.sync.local_aggregation = true;
  input.norm_scope = NormScope::kLayer;
  EXPECT_EQ(make_plan(input)->leaders, ranks({}));
  input.norm_scope = NormScope::kNone;
  input.sync.wire_dtype = ElementType::kFloat16;
  EXPECT_EQ(make_plan(input)->leaders, ranks({})) << "a sum of eight may be beyond its range";
  input.sync.wire_dtype = ElementType::kBfloat16;
  EXPECT_EQ(make_plan(input)->leaders, ranks({0, 1, 0, 1}));
}

TEST(Planner, RepeatsTheGroupsOfAPinWhereverItsWorkersAreNow) {
  PlannerInput input = on_two_machines();
  input.sync.plan = plan_pin_to_json(pin_of(*make_plan(input)));
  input.worker_addresses = {"a:1", "b:1", "c:1", "b:2"};  // worker 2's replacement is elsewhere
  EXPECT_EQ(make_plan(input)->leaders, ranks({0, 1, 0, 1}));
  input.worker_addresses.emplace_back("b:3");  // another number of workers: grouped anew
  EXPECT_EQ(make_plan(input)->leaders, ranks({0, 1, 2, 1, 1}));
  input.leaders = ranks({0, 0, 2, 3, 2});
  EXPECT_EQ(make_plan(input)->leaders, ranks({0, 0, 2, 3, 2})) << "said so: before any pin";
  input.leaders = ranks({});
  EXPECT_EQ(make_plan(input)->leaders, ranks({})) << "that there are none, too";
  PlannerInput ungrouped = on_two_machines();
  ungrouped.sync.local_aggregation = false;
  input = on_two_machines();
  input.sync.plan = plan_pin_to_json(pin_of(*make_plan(ungrouped)));
  EXPECT_EQ(make_plan(input)->leaders, ranks({})) << "that it had none is kept too";
  input.worker_addresses.emplace_back("b:3");
  EXPECT_EQ(make_plan(input)->leaders, ranks({0, 1, 0, 1, 1})) << "of as many workers alone";
  input.sync.plan.erase("workers");
  EXPECT_EQ(make_plan(input)->leaders, ranks({})) << "earlier versions knew no groups";
}

}  // namespace
}  // namespace poseidon::planner_test
