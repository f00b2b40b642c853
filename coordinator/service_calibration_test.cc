// The measurement before a job, as nodes see it: nodes that answer late, not at all, or nonsense.

#include <limits>
#include <string>

#include "common/threads/mutex.h"
#include "coordinator/service_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::service_calibration_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kJob = R"({"name": "calibrate"})";

class CalibrationServiceTest : public ServiceTest {
 protected:
  using Answer = std::function<std::optional<v1::CalibrationReport>(const v1::Calibrate&)>;

  /// Two workers and a server that take part in jobs; workers answer like this.
  void add_nodes(const Answer& worker) {
    for (int i = 0; i < 3; ++i) {
      const bool is_server = i == 0;
      nodes_.push_back(std::make_unique<FakeNode>(
          address_,
          join_as(is_server ? v1::NODE_ROLE_SERVER : v1::NODE_ROLE_WORKER,
                  "10.0.0." + std::to_string(i) + ":4701"),
          FakeNode::Plays::kWholeJob));
      nodes_.back()->measures_ = is_server ? Answer(measured) : worker;
      ASSERT_TRUE(nodes_.back()->wait_joined());
    }
  }
  nlohmann::json finished_plan() {
    await_state("done");
    return nlohmann::json::parse(read_file(folder_ / "run" / "plan.json"));
  }
};

TEST_F(CalibrationServiceTest, AnswersBecomeThePlan) {
  add_nodes(measured);
  ASSERT_TRUE(submit(2, 1, kJob).ok());
  const nlohmann::json plan = finished_plan();
  EXPECT_TRUE(plan["calibration"]["measured"]);
  EXPECT_EQ(plan["calibration"]["device_ops_per_s"], 1e10);
  EXPECT_EQ(plan["calibration"]["workers"][1]["send_bytes_per_s"], 1e8);
  EXPECT_GT(plan["predicted"]["iteration_seconds"], 0.0);
  const v1::GetStatusResponse done = status();
  EXPECT_THAT(done.plan_basis(), HasSubstr("measured"));
  EXPECT_GT(done.predicted_iteration_seconds(), 0.0);
  EXPECT_EQ(done.layers(0).predicted().forward(), 0.01);
  EXPECT_FALSE(done.layers(0).reason().empty());
  for (const auto& node : nodes_) {
    const MutexLock lock(node->mutex_);
    for (const v1::Calibrate& task : node->calibrations_) {
      if (task.has_compute()) {
        EXPECT_EQ(task.compute().job_json(), kJob);
      }
      EXPECT_EQ(task.epoch(), done.epoch());
    }
  }
}

TEST_F(CalibrationServiceTest, ALaterRunHasTheSchemesOfTheLastOne) {
  add_nodes(measured);
  const auto run = [&] {
    EXPECT_TRUE(testing_support::eventually([&] { return submit(2, 1, kJob).ok(); }, kPatience));
    return await([&](const v1::GetStatusResponse& r) {
      return r.job_id() == submitted_.job_id() && r.state() == "done";
    });
  };
  const v1::GetStatusResponse first = run();
  EXPECT_THAT(first.plan_basis(), Not(HasSubstr("last run")));
  const std::filesystem::path file = folder_ / "state" / "plans" / (std::string(64, 'c') + ".json");
  EXPECT_TRUE(
      testing_support::eventually([&] { return std::filesystem::exists(file); }, kPatience));
  const v1::GetStatusResponse second = run();
  EXPECT_THAT(second.plan_basis(), HasSubstr("with the schemes of the plan of " + first.job_id()));
  EXPECT_EQ(second.layers(1).scheme(), first.layers(1).scheme());

  // Another coordinator, and a plan that these measurements would never give.
  const auto kept_of = [&](const std::string& job_id) {
    return testing_support::eventually(
        [&] { return read_file(file).find('"' + job_id + '"') != std::string::npos; }, kPatience);
  };
  ASSERT_TRUE(kept_of(second.job_id()));
  std::string text = read_file(file);
  text.erase(text.find("\"checksum"),
             text.find('\n', text.find("\"checksum")) - text.find("\"checksum"));
  const std::string was = second.layers(1).scheme();
  const std::string other = was == "ps" ? "sfb" : "ps";
  const std::string scheme = "\"fc\": \"";
  ASSERT_NE(text.find(scheme + was), std::string::npos) << text;
  text.replace(text.find(scheme + was), (scheme + was).size(), scheme + other);
  std::ofstream(file) << text;
  const v1::GetStatusResponse third = run();
  if (third.layers(1).scheme() == was) {
    EXPECT_THAT(third.plan_basis(),
                HasSubstr("to pin that one: \"sync\": {\"scheme\":\"" + other + "\"}"));
  } else {
    EXPECT_THAT(third.plan_basis(), HasSubstr("with the schemes of"));
  }

  ASSERT_TRUE(kept_of(third.job_id()));
  std::ofstream(file) << "no JSON";
  EXPECT_THAT(run().plan_basis(), Not(HasSubstr("last run"))) << "what is damaged is not used";
}

TEST_F(CalibrationServiceTest, ASilentNodeCostsTheCalibrationAndIsNamed) {
  CoordinatorOptions hasty = options();
  hasty.cluster.job.calibration.compute_timeout = Milliseconds(300);
  start(hasty);
  add_nodes([](const v1::Calibrate&) { return std::nullopt; });
  ASSERT_TRUE(submit(2, 1, kJob).ok());
  EXPECT_FALSE(finished_plan().contains("calibration"));
  EXPECT_THAT(status().plan_basis(), HasSubstr("worker 0 (10.0.0.1:4701"));
}

TEST_F(CalibrationServiceTest, LiesAreCountedAndTheJobGoesOnWithoutThem) {
  add_nodes([](const v1::Calibrate& task) {
    auto report = measured(task);
    for (v1::LayerTimesMessage& layer : *report->mutable_layers()) {
      layer.set_forward_seconds(std::numeric_limits<double>::quiet_NaN());
    }
    return report;
  });
  ASSERT_TRUE(submit(2, 1, kJob).ok());
  EXPECT_FALSE(finished_plan().contains("calibration"));
  EXPECT_GE(refused("malformed"), 1u);
  EXPECT_THAT(status().plan_basis(), HasSubstr("says what cannot be"));
}

TEST_F(CalibrationServiceTest, ALostNodeEndsTheMeasuring) {
  add_nodes([](const v1::Calibrate&) { return std::nullopt; });
  ASSERT_TRUE(submit(2, 1, kJob).ok());
  ASSERT_TRUE(nodes_[2]->wait([&] { return !nodes_[2]->calibrations_.empty(); }));
  EXPECT_THAT(status().message(), HasSubstr("measures how fast workers compute"));
  nodes_.pop_back();
  const v1::GetStatusResponse recovering = await_state("recovering");
  EXPECT_THAT(recovering.message(), HasSubstr("waits for worker 1"));
  ASSERT_TRUE(nodes_[0]->wait_stop());
}

TEST_F(CalibrationServiceTest, AMeasurementThatNobodyAskedForIsRefused) {
  add_nodes(measured);
  v1::NodeMessage message;
  *message.mutable_calibration() = *measured(v1::Calibrate());
  EXPECT_TRUE(nodes_[1]->client().send(message));
  await([&](const v1::GetStatusResponse&) { return refused("wrong_state") == 1; });
}

}  // namespace
}  // namespace poseidon::service_calibration_test
