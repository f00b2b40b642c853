#include "coordinator/job/plan_memory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::plan_memory_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFile = "plans/1f.json";

EarlierPlan earlier(const std::string& job, Scheme fc6, Scheme fc7) {
  return {.job_id = job, .schemes = {{"fc6", fc6}, {"fc7", fc7}}};
}

Plan plan(Scheme fc6, Scheme fc7) {
  Plan made;
  made.layers.push_back({.name = "conv1", .shape = {20, 1, 5, 5}});
  made.layers.push_back({.name = "fc6", .shape = {10, 100}, .scheme = fc6});
  made.layers.push_back({.name = "fc7", .shape = {10, 10}, .scheme = fc7});
  return made;
}

Participant participant(NodeRole role, std::uint64_t id, const std::string& address,
                        const std::string& device = "cpu") {
  NodeInfo node;
  node.id = NodeId(id);
  node.role = role;
  node.address = address;
  node.device = device;
  return {.node = node};
}

Roster roster(const std::vector<std::string>& workers, const std::vector<std::string>& servers,
              const std::string& device = "cpu") {
  Roster made;
  std::uint64_t id = 0;
  for (const std::string& address : workers) {
    made.workers.push_back(participant(NodeRole::kWorker, ++id, address, device));
  }
  for (const std::string& address : servers) {
    made.servers.push_back(participant(NodeRole::kServer, ++id, address, ""));
  }
  return made;
}

TEST(PlanMemory, IsOnDiskWhatItIsInMemory) {
  PlanMemory memory;
  EXPECT_EQ(memory.find("two"), nullptr);
  EXPECT_TRUE(memory.remember("two", earlier("digits-3", Scheme::kPs, Scheme::kSfb)));
  EXPECT_TRUE(memory.remember("four", earlier("digits-4", Scheme::kSfb, Scheme::kSfb)));
  EXPECT_FALSE(memory.remember("four", earlier("digits-4", Scheme::kSfb, Scheme::kSfb)));
  EXPECT_TRUE(memory.remember("four", earlier("digits-5", Scheme::kSfb, Scheme::kSfb)))
      << "a later run";
  const absl::StatusOr<PlanMemory> read = PlanMemory::from_json(memory.to_json(), kFile);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_NE(read->find("two"), nullptr);
  EXPECT_EQ(*read->find("two"), earlier("digits-3", Scheme::kPs, Scheme::kSfb));
  EXPECT_EQ(read->find("four")->job_id, "digits-5");
  EXPECT_EQ(read->find("three"), nullptr);
}

TEST(PlanMemory, TheOldestGoes) {
  PlanMemory memory;
  memory.remember("first", earlier("a-1", Scheme::kPs, Scheme::kPs));
  memory.remember("second", earlier("a-2", Scheme::kPs, Scheme::kPs));
  memory.remember("first", earlier("a-3", Scheme::kPs, Scheme::kPs));
  for (std::size_t i = 1; i < PlanMemory::kMostPlans; ++i) {
    memory.remember(std::to_string(i), earlier("b-1", Scheme::kPs, Scheme::kPs));
  }
  EXPECT_EQ(memory.find("second"), nullptr);
  EXPECT_NE(memory.find("first"), nullptr) << "it was used again";
  EXPECT_TRUE(PlanMemory::from_json(memory.to_json(), kFile).ok());
}

TEST(PlanMemory, WhatIsDamagedOrForeignIsRefusedByItsName) {
  const auto error = [](const std::string& text) {
    return std::string(PlanMemory::from_json(text, kFile).status().message());
  };
  PlanMemory memory;
  memory.remember("two", earlier("digits-3", Scheme::kPs, Scheme::kSfb));
  std::string damaged = memory.to_json();
  damaged.replace(damaged.find("sfb"), 3, "ps ");
  EXPECT_THAT(error(damaged), HasSubstr("plans/1f.json: its checksum is"));
  for (const char* foreign : {"", "[]", "{}", R"({"plans": []})", R"({"plans": [1]})",
                              R"({"plans": [{"machines": "a", "job": "b"}]})",
                              R"({"plans": [{"machines": "a", "job": "b", "schemes": 3}]})"}) {
    EXPECT_THAT(error(foreign), HasSubstr(kFile)) << foreign;
  }
  EXPECT_THAT(error(R"({"plans": [{"machines": "a", "job": "b", "schemes": {"fc": "rdma"}}]})"),
              HasSubstr("plans[0].schemes.fc"));
}

TEST(MachinesDigest, IsOfMachinesAndDevicesNotOfAddressesOrOrder) {
  const std::string digest =
      machines_digest(roster({"10.0.0.1:1", "10.0.0.2:1"}, {"10.0.0.2:2", "10.0.0.3:2"}));
  EXPECT_EQ(digest.size(), 64u);
  EXPECT_EQ(digest,
            machines_digest(roster({"10.0.0.7:5", "10.0.0.4:6"}, {"10.0.0.9:1", "10.0.0.4:7"})));
  EXPECT_NE(digest,
            machines_digest(roster({"10.0.0.1:1", "10.0.0.2:1"}, {"10.0.0.3:2", "10.0.0.4:2"})))
      << "no machine is shared";
  EXPECT_NE(digest, machines_digest(roster({"10.0.0.1:1", "10.0.0.2:1"}, {"10.0.0.2:2"})));
  EXPECT_NE(digest, machines_digest(roster({"10.0.0.1:1", "10.0.0.2:1"},
                                           {"10.0.0.2:2", "10.0.0.3:2"}, "cuda:0")));
  EXPECT_NE(machines_digest(roster({"", ""}, {"10.0.0.2:2"})),
            machines_digest(roster({"10.0.0.1:1", "10.0.0.1:2"}, {"10.0.0.2:2"})))
      << "who does not listen shares no machine";
}

TEST(CompareWithEarlier, TellsWhatDiffersAndHowToPinIt) {
  const EarlierPlan before = earlier("digits-3", Scheme::kPs, Scheme::kSfb);
  EXPECT_EQ(earlier_plan(plan(Scheme::kPs, Scheme::kSfb), "digits-3"), before);
  EXPECT_EQ(compare_with_earlier(before, plan(Scheme::kPs, Scheme::kSfb), "digits-7"),
            "with the schemes of the plan of digits-3, the last run of this job on such machines");
  EXPECT_EQ(compare_with_earlier(before, plan(Scheme::kSfb, Scheme::kSfb), "digits-7"),
            "differs from the plan of digits-3, the last run of this job on such machines (fc6 by "
            "sfb, was ps); to pin that one: \"sync\": "
            R"({"scheme":{"fc6":"ps","fc7":"sfb"}})");
  Plan measured = plan(Scheme::kSfb, Scheme::kPs);
  measured.calibration.emplace();
  const std::string both = compare_with_earlier(before, measured, "digits-3");
  EXPECT_THAT(both, HasSubstr("differs from this job's earlier plan (fc6 by sfb, was ps; fc7 by "
                              "ps, was sfb)"));
  EXPECT_THAT(both, HasSubstr("at least 5 % longer"));
  EXPECT_THAT(compare_with_earlier(earlier("digits-3", Scheme::kPs, Scheme::kPs),
                                   plan(Scheme::kSfb, Scheme::kPs), "digits-7"),
              HasSubstr(R"("sync": {"scheme":"ps"})"));
}

TEST(CompareWithEarlier, SaysNothingOfAnotherNetwork) {
  const EarlierPlan other{.job_id = "a-1", .schemes = {{"ip1", Scheme::kPs}}};
  EXPECT_EQ(compare_with_earlier(other, plan(Scheme::kPs, Scheme::kPs), "a-2"), "");
}

}  // namespace
}  // namespace poseidon::plan_memory_test
