#include "common/plan/plan.h"

#include <functional>

#include "common/plan/plan_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::plan_test {
namespace {

using ::testing::HasSubstr;

Plan valid_plan() {
  Plan plan;
  plan.epoch = Epoch(7);
  plan.batch_size = 32;
  plan.worker_addresses = {"", "10.0.0.2:4711"};
  plan.server_addresses = {"10.0.0.1:5000", "10.0.0.2:5000"};
  plan.layers = {{.name = "conv1",
                  .type = "convolution",
                  .shape = {2, 1, 3, 3},
                  .parameters = 20,
                  .scheme = Scheme::kPs,
                  .ps_bytes = 160,
                  .sfb_bytes = 0,
                  .reason = "not connected"},
                 {.name = "fc",
                  .type = "fully_connected",
                  .shape = {10, 5},
                  .parameters = 60,
                  .scheme = Scheme::kSfb,
                  .ps_bytes = 480,
                  .sfb_bytes = 100,
                  .reason = "less"},
                 {.name = "head",
                  .type = "fully_connected",
                  .shape = {12, 5},
                  .parameters = 60,
                  .scheme = Scheme::kPs,
                  .ps_bytes = 480,
                  .sfb_bytes = 500,
                  .reason = "more"}};
  plan.chunks = {{LayerIndex(0), 0, 20, ServerIndex(0)},
                 {LayerIndex(2), 0, 40, ServerIndex(1)},
                 {LayerIndex(2), 40, 20, ServerIndex(0)}};
  return plan;
}

TEST(Plan, ValidOnePasses) { EXPECT_TRUE(validate(valid_plan()).ok()); }

TEST(Plan, WithSfbLayersOnlyThereAreNoChunks) {
  Plan plan = valid_plan();
  plan.layers = {plan.layers[1]};
  plan.chunks.clear();
  EXPECT_TRUE(validate(plan).ok());
  plan.layers[0].parameters = 50;  // without a bias
  EXPECT_TRUE(validate(plan).ok());
}

struct BrokenPlan {
  std::string name;
  std::function<void(Plan&)> break_it;
  std::string message;
};

class PlanRefusal : public ::testing::TestWithParam<BrokenPlan> {};

TEST_P(PlanRefusal, SaysWhatIsWrong) {
  Plan plan = valid_plan();
  GetParam().break_it(plan);
  const absl::Status status = validate(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Tensors, PlanRefusal,
    ::testing::Values(BrokenPlan{"gap",
                                 [](Plan& p) {
                                   p.layers[0].tensors = {{"weight", 18, {}}};
                                 },
                                 "2 elements belong to no tensor"},
                      BrokenPlan{"too_long",
                                 [](Plan& p) {
                                   p.layers[0].tensors = {{"weight", 18, {}}, {"bias", 3, {}}};
                                 },
                                 "tensor bias has 3 elements"},
                      BrokenPlan{"empty",
                                 [](Plan& p) {
                                   p.layers[0].tensors = {{"weight", 0, {}}};
                                 },
                                 "has 0 elements"},
                      BrokenPlan{"multiplier",
                                 [](Plan& p) {
                                   p.layers[0].tensors = {{"weight", 20, {-1.0, 1.0}}};
                                 },
                                 "multiplier that is no finite number"},
                      BrokenPlan{"many",
                                 [](Plan& p) {
                                   p.layers[0].parameters = 65;
                                   p.layers[0].tensors.assign(65, {"t", 1, {}});
                                 },
                                 "has 65 tensors"},
                      BrokenPlan{"no_matrix",
                                 [](Plan& p) {
                                   p.layers[1].tensors = {{"bias", 10, {}}, {"weight", 50, {}}};
                                 },
                                 "not a matrix"}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    All, PlanRefusal,
    ::testing::Values(
        BrokenPlan{"epoch", [](Plan& p) { p.epoch = Epoch(0); }, "epoch"},
        BrokenPlan{"batch", [](Plan& p) { p.batch_size = 0; }, "batch size 0"},
        BrokenPlan{"no_wire_type", [](Plan& p) { p.wire_type = ElementType::kNone; },
                   "wire element type 0"},
        BrokenPlan{"wire_type", [](Plan& p) { p.wire_type = static_cast<ElementType>(9); },
                   "wire element type 9"},
        BrokenPlan{"no_workers", [](Plan& p) { p.worker_addresses.clear(); }, "no workers"},
        BrokenPlan{"no_servers", [](Plan& p) { p.server_addresses.clear(); }, "no servers"},
        BrokenPlan{"server_address", [](Plan& p) { p.server_addresses[1] = ""; }, "no address"},
        BrokenPlan{"same_server", [](Plan& p) { p.server_addresses[1] = p.server_addresses[0]; },
                   "two servers"},
        BrokenPlan{"no_layers", [](Plan& p) { p.layers.clear(); }, "nothing to train"},
        BrokenPlan{"layer_name", [](Plan& p) { p.layers[0].name = ""; }, "no name"},
        BrokenPlan{"same_layer", [](Plan& p) { p.layers[1].name = "conv1"; }, "two layers"},
        BrokenPlan{"parameters", [](Plan& p) { p.layers[0].parameters = 0; }, "0 parameters"},
        BrokenPlan{"huge", [](Plan& p) { p.layers[0].parameters = INT64_MAX; }, "parameters"},
        BrokenPlan{"shape",
                   [](Plan& p) {
                     p.layers[0].shape = {2, 1, 3, 4};
                   },
                   "conv1"},
        BrokenPlan{"shape_overflow",
                   [](Plan& p) {
                     p.layers[0].shape = {1 << 30, 1 << 30, 1 << 30};
                   },
                   "conv1"},
        BrokenPlan{"shape_negative",
                   [](Plan& p) {
                     p.layers[0].shape = {-2, -1};
                   },
                   "conv1"},
        BrokenPlan{"cost", [](Plan& p) { p.layers[0].ps_bytes = -1; }, "negative cost"},
        BrokenPlan{"server", [](Plan& p) { p.chunks[1].server = ServerIndex(2); }, "server 2 of 2"},
        BrokenPlan{"gap", [](Plan& p) { p.chunks[2].offset = 41; }, "element 40"},
        BrokenPlan{"overlap", [](Plan& p) { p.chunks[2].offset = 39; }, "element 40"},
        BrokenPlan{"beyond", [](Plan& p) { p.chunks[2].elements = 21; }, "element 40"},
        BrokenPlan{"overflow", [](Plan& p) { p.chunks[2].elements = INT64_MAX; }, "element 40"},
        BrokenPlan{"empty_chunk", [](Plan& p) { p.chunks[1].elements = 0; }, "chunk 1"},
        BrokenPlan{"missing_chunk", [](Plan& p) { p.chunks.pop_back(); }, "up to element 40 of 60"},
        BrokenPlan{"one_too_many", [](Plan& p) { p.chunks.push_back(p.chunks[0]); }, "chunk 3"},
        BrokenPlan{"sfb_with_a_chunk", [](Plan& p) { p.layers[2].scheme = Scheme::kSfb; },
                   "chunk 1 (layer 2"},
        BrokenPlan{"ps_without_chunks", [](Plan& p) { p.layers[1].scheme = Scheme::kPs; },
                   "does not continue layer 1"},
        BrokenPlan{"sfb_convolution",
                   [](Plan& p) {
                     p.layers[0].scheme = Scheme::kSfb;
                     p.chunks.erase(p.chunks.begin());
                   },
                   "conv1 goes by SFB"},
        BrokenPlan{"sfb_parameters", [](Plan& p) { p.layers[1].parameters = 61; },
                   "fc goes by SFB"},
        BrokenPlan{"order", [](Plan& p) { std::swap(p.chunks[1], p.chunks[2]); }, "chunk 1"}),
    [](const auto& test) { return test.param.name; });

TEST(Plan, JsonHasTheContractsKeys) {
  const auto json = nlohmann::json::parse(plan_to_json(valid_plan()));
  EXPECT_EQ(json["workers"], 2);
  EXPECT_EQ(json["servers"], 2);
  EXPECT_EQ(json["batch_size"], 32);
  EXPECT_EQ(json["epoch"], 7);
  EXPECT_EQ(json["wire_dtype"], "fp32");
  EXPECT_EQ(json["iteration_bytes"], 160 + 100 + 480);
  ASSERT_EQ(json["layers"].size(), 3u);
  const auto& fc = json["layers"][1];
  EXPECT_EQ(fc["name"], "fc");
  EXPECT_EQ(fc["type"], "fully_connected");
  EXPECT_EQ(fc["shape"], nlohmann::json({10, 5}));
  EXPECT_EQ(fc["parameters"], 60);
  EXPECT_EQ(fc["scheme"], "sfb");
  EXPECT_EQ(fc["ps_bytes"], 480);
  EXPECT_EQ(fc["sfb_bytes"], 100);
  EXPECT_EQ(fc["reason"], "less");
  EXPECT_EQ(json["chunks"][2]["offset"], 40);
}

TEST(Plan, JsonOfHostileNamesDoesNotThrow) {
  Plan plan = valid_plan();
  plan.layers[0].name = "\xff\xfe";
  EXPECT_FALSE(plan_to_json(plan).empty());
}

TEST(PlanMessage, RoundTripKeepsEverything) {
  const absl::StatusOr<Plan> back = plan_from_message(plan_to_message(valid_plan()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(plan_to_json(*back), plan_to_json(valid_plan()));
}

TEST(PlanMessage, CarriesTensorsAndTheirMultipliers) {
  Plan plan = valid_plan();
  plan.layers[1].tensors = {{"weight", 50, {0.5, 1.0}}, {"bias", 10, {2.0, 0.0, false}}};
  plan.norm_scope = NormScope::kNetwork;
  const absl::StatusOr<Plan> back = plan_from_message(plan_to_message(plan));
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->layers[1].tensors.size(), 2u);
  EXPECT_EQ(back->layers[1].tensors[1].name, "bias");
  EXPECT_EQ(back->layers[1].tensors[1].elements, 10);
  EXPECT_EQ(back->layers[1].tensors[0].multipliers, (StepMultipliers{0.5, 1.0}));
  EXPECT_EQ(back->layers[1].tensors[1].multipliers, (StepMultipliers{2.0, 0.0, false}));
  EXPECT_EQ(back->norm_scope, NormScope::kNetwork);
  v1::PlanMessage message = plan_to_message(plan);
  message.set_norm_scope("planet");
  EXPECT_THAT(std::string(plan_from_message(message).status().message()),
              HasSubstr("'planet'; known: none, layer, network"));
  EXPECT_TRUE(back->layers[0].tensors.empty());
  EXPECT_EQ(plan_to_json(*back), plan_to_json(plan));
  EXPECT_THAT(plan_to_json(plan), HasSubstr("multipliers"));
}

TEST(PlanMessage, CarriesTheWireType) {
  for (const auto type : {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}) {
    Plan plan = valid_plan();
    plan.wire_type = type;
    const absl::StatusOr<Plan> back = plan_from_message(plan_to_message(plan));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->wire_type, type);
  }
  v1::PlanMessage message = plan_to_message(valid_plan());
  message.set_wire_dtype("fp8");
  EXPECT_THAT(std::string(plan_from_message(message).status().message()),
              HasSubstr("'fp8'; known: fp32, bf16, fp16"));
}

TEST(PlanMessage, CarriesTheSendOrder) {
  for (const SendOrder order : kSendOrders) {
    Plan plan = valid_plan();
    plan.send_order = order;
    const absl::StatusOr<Plan> back = plan_from_message(plan_to_message(plan));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->send_order, order);
  }
  v1::PlanMessage message = plan_to_message(valid_plan());
  message.clear_send_order();  // of a version before there was a choice
  EXPECT_EQ(plan_from_message(message)->send_order, SendOrder::kNeed);
  message.set_send_order("random");
  EXPECT_THAT(std::string(plan_from_message(message).status().message()),
              HasSubstr("'random'; known: need, ready"));
}

TEST(PlanMessage, CarriesTheLeaders) {
  Plan plan = valid_plan();
  plan.worker_addresses = {"a:1", "b:1", "a:2"};
  plan.leaders = {WorkerRank(0), WorkerRank(1), WorkerRank(0)};
  v1::PlanMessage message = plan_to_message(plan);
  EXPECT_EQ(plan_from_message(message)->leaders, plan.leaders);
  EXPECT_EQ(contributors(plan), (std::vector{WorkerRank(0), WorkerRank(1)}));
  EXPECT_EQ(group_of(plan, WorkerRank(0)), (std::vector{WorkerRank(0), WorkerRank(2)}));
  EXPECT_EQ(leader_of(plan, WorkerRank(2)), WorkerRank(0));
  EXPECT_EQ(nlohmann::json::parse(plan_to_json(plan))["local_groups"],
            nlohmann::json::parse("[[0, 2], [1]]"));

  const auto refusal = [&message] {
    return std::string(plan_from_message(message).status().message());
  };
  message.set_leaders(0, 2);
  EXPECT_THAT(refusal(), HasSubstr("worker 2 cannot lead worker 0"));
  message.set_leaders(0, 0);
  message.set_leaders(2, 7);
  EXPECT_THAT(refusal(), HasSubstr("worker 7 cannot lead worker 2"));
  message.set_leaders(2, 0);
  message.set_worker_addresses(0, "");
  EXPECT_THAT(refusal(), HasSubstr("worker 0 leads others, but listens nowhere"));
  message.set_worker_addresses(0, "a:1");
  message.set_norm_scope("layer");
  EXPECT_THAT(refusal(), HasSubstr("relays do not carry"));
  message.set_norm_scope("none");
  message.add_leaders(0);
  EXPECT_THAT(refusal(), HasSubstr("leaders of 4 workers, it has 3"));
}

TEST(PlanMessage, CarriesTheWindow) {
  Plan plan = valid_plan();
  plan.window_bytes = 3 << 20;
  v1::PlanMessage message = plan_to_message(plan);
  EXPECT_EQ(plan_from_message(message)->window_bytes, 3 << 20);
  message.clear_window_bytes();  // of a version before there was a choice
  EXPECT_EQ(plan_from_message(message)->window_bytes, kWorkerWindowBytes);
  for (const std::int64_t bytes :
       {std::int64_t{-1}, kMinWorkerWindowBytes - 1, kMaxWorkerWindowBytes + 1}) {
    message.set_window_bytes(bytes);
    EXPECT_THAT(std::string(plan_from_message(message).status().message()),
                HasSubstr(absl::StrCat("a window of ", bytes, " bytes")));
  }
}

TEST(PlanMessage, UnknownSchemeIsRefusedByName) {
  v1::PlanMessage message = plan_to_message(valid_plan());
  message.mutable_layers(1)->set_scheme("ring");
  EXPECT_THAT(std::string(plan_from_message(message).status().message()), HasSubstr("'ring'"));
}

TEST(PlanMessage, BrokenContentIsRefused) {
  v1::PlanMessage message = plan_to_message(valid_plan());
  message.mutable_chunks(1)->set_offset(-40);
  EXPECT_EQ(plan_from_message(message).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan_from_message(v1::PlanMessage()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

v1::Assignment assignment_of(const Plan& plan, std::uint32_t index) {
  v1::Assignment assignment;
  *assignment.mutable_plan() = plan_to_message(plan);
  assignment.set_index(index);
  for (std::uint32_t rank = 0; rank < plan.workers(); ++rank) {
    assignment.mutable_proofs()->add_expected(100 + rank);
    assignment.mutable_proofs()->add_to_workers(200 + rank);
  }
  for (std::uint32_t i = 0; i < plan.servers(); ++i) {
    assignment.mutable_proofs()->add_to_servers(300 + i);
  }
  return assignment;
}

TEST(Assignment, TheNodeKnowsWhatStreamsShow) {
  const v1::Assignment assignment = assignment_of(valid_plan(), 0);
  const auto worker = plan_from_assignment(assignment, AssignedRole::kWorker);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(proof_at(worker->proofs.expected, 0), 100U);
  EXPECT_EQ(proof_at(worker->proofs.to_workers, 0), 200U);
  EXPECT_EQ(proof_at(worker->proofs.to_servers, 0), 300U);
  EXPECT_EQ(proof_at(worker->proofs.expected, 1000), 0U) << "none";
  EXPECT_EQ(plan_to_json(*worker), plan_to_json(valid_plan())) << "people and files see none";
  const auto server = plan_from_assignment(assignment, AssignedRole::kServer);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(proof_at(server->proofs.expected, 0), 100U);
  EXPECT_TRUE(server->proofs.to_servers.empty());
}

TEST(Assignment, WithoutAllProofsItIsRefused) {
  const auto refusal = [](const v1::Assignment& assignment, AssignedRole role) {
    return std::string(plan_from_assignment(assignment, role).status().message());
  };
  v1::Assignment assignment = assignment_of(valid_plan(), 0);
  assignment.mutable_proofs()->mutable_expected()->RemoveLast();
  EXPECT_THAT(refusal(assignment, AssignedRole::kServer), HasSubstr("proofs of workers"));
  assignment = assignment_of(valid_plan(), 0);
  assignment.mutable_proofs()->set_to_servers(0, 0);
  EXPECT_THAT(refusal(assignment, AssignedRole::kWorker), HasSubstr("a proof 0 for servers"));
  EXPECT_EQ(refusal(assignment, AssignedRole::kServer), "") << "no business of a server";
  assignment.clear_proofs();
  EXPECT_THAT(refusal(assignment, AssignedRole::kServer), HasSubstr("has 0 proofs of workers"));
  assignment = assignment_of(valid_plan(), 99);
  EXPECT_THAT(refusal(assignment, AssignedRole::kServer), HasSubstr("assigned as server 99 of"));
  EXPECT_THAT(refusal(assignment, AssignedRole::kWorker), HasSubstr("assigned as worker 99 of"));
}

}  // namespace
}  // namespace poseidon::plan_test
