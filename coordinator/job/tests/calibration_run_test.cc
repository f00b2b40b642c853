#include "coordinator/job/reports/calibration_run.h"

#include <cmath>
#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::calibration_run_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = CalibrationTask::Kind;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

NodeInfo node(std::uint64_t id, NodeRole role, const std::string& address) {
  NodeInfo info;
  info.id = NodeId(id);
  info.role = role;
  info.address = address;
  info.peer_host = "seen";
  return info;
}

/// Workers are nodes 1.., servers 101..; `hosts` by node.
std::vector<NodeInfo> nodes(NodeRole role, const std::vector<std::string>& hosts) {
  std::vector<NodeInfo> result;
  for (const std::string& host : hosts) {
    const std::uint64_t id = (role == NodeRole::kWorker ? 1 : 101) + result.size();
    result.push_back(node(id, role, host.empty() ? "" : host + ":" + std::to_string(id)));
  }
  return result;
}

std::vector<std::string> many(const std::string& name, int count) {
  std::vector<std::string> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back(name + std::to_string(i));
  return hosts;
}

CalibrationAnswer compute(double scale) {
  CalibrationAnswer answer;
  answer.layers = {{"conv", 0.01 * scale, 0.02 * scale}, {"fc", 0.001 * scale, 0.002 * scale}};
  answer.device_ops_per_s = 1e12 / scale;
  return answer;
}
CalibrationAnswer sums(double bytes_per_s) {
  CalibrationAnswer answer;
  answer.server_sum_bytes_per_s = bytes_per_s;
  return answer;
}
CalibrationAnswer link(double send, double receive, double latency = 1e-4) {
  CalibrationAnswer answer;
  answer.send_bytes_per_s = send;
  answer.receive_bytes_per_s = receive;
  answer.latency_s = latency;
  return answer;
}

class CalibrationRunTest : public ::testing::Test {
 protected:
  void begin(const std::vector<std::string>& workers, const std::vector<std::string>& servers,
             Iteration iterations = 1000) {
    run_.emplace(CalibrationOptions{}, nodes(NodeRole::kWorker, workers),
                 nodes(NodeRole::kServer, servers), std::vector<std::string>{"conv", "fc"},
                 iterations, at(0));
    tasks_ = run_->take_tasks();
  }
  /// All tasks of this step answered alike.
  void answer_all(const CalibrationAnswer& answer) {
    for (const CalibrationTask& task : tasks_) EXPECT_FALSE(say(task, answer));
    tasks_ = run_->take_tasks();
  }
  std::optional<CalibrationRun::Refused> say(const CalibrationTask& task,
                                             CalibrationAnswer answer) {
    answer.step = task.step;
    return run_->on_answer(task.node, answer, at(1));
  }
  void measure_nodes() {
    answer_all(compute(1.0));
    answer_all(sums(4e9));
  }
  std::string why_none() {
    EXPECT_TRUE(run_->done());
    return std::string(run_->result().status().message());
  }

  std::optional<CalibrationRun> run_;
  std::vector<CalibrationTask> tasks_;
};

TEST_F(CalibrationRunTest, WorkersServersAndThenTheNetwork) {
  begin({"a", "b"}, {"c"});
  ASSERT_THAT(tasks_, SizeIs(2));
  EXPECT_EQ(tasks_[0].kind, Kind::kCompute);
  EXPECT_FALSE(say(tasks_[0], compute(2.0)));
  EXPECT_THAT(run_->what(), HasSubstr("worker 1 (b:2"));
  EXPECT_THAT(run_->take_tasks(), IsEmpty());
  EXPECT_FALSE(say(tasks_[1], compute(1.0)));
  tasks_ = run_->take_tasks();
  ASSERT_THAT(tasks_, SizeIs(1));
  EXPECT_EQ(tasks_[0].kind, Kind::kSums);
  EXPECT_EQ(tasks_[0].node, NodeId(101));
  answer_all(sums(3e9));
  for (int round = 0; round < 3; ++round) {
    ASSERT_THAT(tasks_, SizeIs(1)) << "three machines: one pair at a time";
    EXPECT_EQ(tasks_[0].kind, Kind::kLink);
    EXPECT_FALSE(run_->done());
    answer_all(link(1e9, 2e9));
  }
  ASSERT_TRUE(run_->done());
  const Calibration calibration = *run_->result();
  EXPECT_TRUE(calibration.measured);
  EXPECT_TRUE(validate(calibration, "test").ok());
  EXPECT_DOUBLE_EQ(calibration.layers[0].forward_s, 0.02) << "the slowest worker's";
  EXPECT_DOUBLE_EQ(calibration.device_ops_per_s, 0.5e12);
  EXPECT_DOUBLE_EQ(calibration.server_sum_bytes_per_s, 3e9);
  EXPECT_DOUBLE_EQ(calibration.latency_s, 1e-4);
  EXPECT_THAT(calibration.workers, SizeIs(2));
  EXPECT_THAT(calibration.servers, SizeIs(1));
}

TEST_F(CalibrationRunTest, PairsOfARoundHaveNoMachineInCommonAndEveryMachineIsMeasured) {
  for (const int machines : {2, 3, 4, 5, 7, 16, 63, 64}) {
    begin(many("w", machines), {"w0"});
    measure_nodes();
    std::set<std::pair<std::string, std::string>> pairs;
    std::set<std::string> measured;
    int rounds = 0;
    while (!run_->done()) {
      ASSERT_LE(++rounds, 3);
      std::set<std::string> busy;
      for (const CalibrationTask& task : tasks_) {
        const std::string from = "w" + std::to_string(task.node.value() - 1);
        const std::string to = task.peer_address.substr(0, task.peer_address.find(':'));
        EXPECT_TRUE(busy.insert(from).second) << from;
        EXPECT_TRUE(busy.insert(to).second) << to;
        EXPECT_TRUE(pairs.insert({from, to}).second) << "a new pair";
        measured.insert({from, to});
      }
      answer_all(link(1e9, 1e9));
    }
    EXPECT_THAT(measured, SizeIs(static_cast<std::size_t>(machines)));
    EXPECT_TRUE(run_->result().ok());
  }
}

TEST_F(CalibrationRunTest, NodesOfOneMachineAreMeasuredOnceAndShareItsNic) {
  begin({"a", "a", "b"}, {"b", "a"});
  measure_nodes();
  ASSERT_THAT(tasks_, SizeIs(1));
  EXPECT_EQ(tasks_[0].node, NodeId(1));
  EXPECT_EQ(tasks_[0].peer_address, "b:3");
  answer_all(link(1e9, 5e8));
  const Calibration calibration = *run_->result();
  EXPECT_EQ(calibration.workers[1].send_bytes_per_s, 1e9);
  EXPECT_EQ(calibration.servers[0].receive_bytes_per_s, 1e9);
  EXPECT_EQ(calibration.servers[1].receive_bytes_per_s, 5e8);
}

TEST_F(CalibrationRunTest, ASlowNicIsToldFromItsPeers) {
  begin(many("w", 4), {"w0"});
  measure_nodes();
  while (!run_->done()) {
    for (const CalibrationTask& task : std::exchange(tasks_, {})) {
      const bool slow = task.node == NodeId(3) || task.peer_address == "w2:3";
      EXPECT_FALSE(say(task, slow ? link(1e8, 1e8) : link(1.0e9, 1.05e9)));
    }
    tasks_ = run_->take_tasks();
  }
  const Calibration calibration = *run_->result();
  EXPECT_EQ(calibration.workers[2].send_bytes_per_s, 1e8);
  EXPECT_GE(calibration.workers[0].send_bytes_per_s, 1e9);
  EXPECT_EQ(calibration.workers[0].send_bytes_per_s, calibration.workers[1].send_bytes_per_s)
      << "what differs by no more than a measurement does is alike";
}

TEST_F(CalibrationRunTest, AShortJobIsNotHeldUp) {
  begin({"a", "b"}, {"a"}, 10);
  measure_nodes();
  EXPECT_EQ(tasks_[0].max_time, CalibrationOptions{}.min_link);
  begin({"a", "b"}, {"a"}, 200);
  measure_nodes();
  EXPECT_NEAR(static_cast<double>(tasks_[0].max_time.count()), 0.01 * 200 * 0.033 * 1e9, 1e3);
  begin({"a", "b"}, {"a"}, 1'000'000);
  measure_nodes();
  EXPECT_EQ(tasks_[0].max_time, CalibrationOptions{}.max_link);
}

// ---- what goes wrong ----

TEST_F(CalibrationRunTest, ASilentNodeIsNamed) {
  begin({"a", "b"}, {"c"});
  EXPECT_FALSE(say(tasks_[1], compute(1.0)));
  run_->tick(at(299));
  EXPECT_FALSE(run_->done());
  run_->tick(at(301));
  EXPECT_THAT(why_none(), HasSubstr("worker 0 (a:1"));
  EXPECT_THAT(why_none(), HasSubstr("did not answer in time"));
}

TEST_F(CalibrationRunTest, TimeInWhichNobodyCouldBeHeardIsNotCounted) {
  begin({"a", "b"}, {"c"});
  run_->extend_deadlines(at(60));
  run_->tick(at(359));
  EXPECT_FALSE(run_->done());
  run_->tick(at(361));
  EXPECT_TRUE(run_->done());
}

TEST_F(CalibrationRunTest, ALateAnswerIsRefused) {
  begin({"a", "b"}, {"c"});
  const CalibrationTask late = tasks_[0];
  run_->tick(at(301));
  const auto refused = say(late, compute(1.0));
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->refusal, Refusal::kWrongState);
}

TEST_F(CalibrationRunTest, WhoCannotSaysWhy) {
  begin({"a", "b"}, {"c"});
  CalibrationAnswer answer;
  answer.error = "needs 80 GiB, this machine has 8";
  EXPECT_FALSE(say(tasks_[1], answer)) << "an honest answer";
  EXPECT_THAT(why_none(), HasSubstr("worker 1 (b:2"));
  EXPECT_THAT(why_none(), HasSubstr("80 GiB"));
}

TEST_F(CalibrationRunTest, LiesAreRefusedAndLeaveNoCalibration) {
  std::vector<CalibrationAnswer> lies;
  for (const double time : {kNaN, kInf, -1.0, 1e9}) {
    lies.push_back(compute(1.0));
    lies.back().layers[1].backward_s = time;
  }
  for (const double speed : {kNaN, kInf, -1.0, 0.0, 1e300}) {
    lies.push_back(compute(1.0));
    lies.back().device_ops_per_s = speed;
  }
  lies.push_back(compute(0.0));
  lies.back().device_ops_per_s = 1e12;
  lies.push_back(compute(1.0));
  lies.back().layers.pop_back();
  lies.push_back(compute(1.0));
  lies.back().layers[0].name = "other";
  for (const CalibrationAnswer& lie : lies) {
    begin({"a", "b"}, {"c"});
    const auto refused = say(tasks_[0], lie);
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->refusal, Refusal::kMalformed);
    EXPECT_THAT(why_none(), HasSubstr("worker 0 (a:1"));
  }
  for (const double speed : {kNaN, kInf, -1.0, 0.0, 1e300}) {
    begin({"a", "b"}, {"c"});
    answer_all(compute(1.0));
    EXPECT_TRUE(say(tasks_[0], sums(speed)).has_value());
    EXPECT_THAT(why_none(), HasSubstr("server 0 (c:101)"));
    begin({"a", "b"}, {"a"});
    measure_nodes();
    EXPECT_TRUE(say(tasks_[0], link(1e9, speed)).has_value());
    EXPECT_THAT(why_none(), HasSubstr("a:1"));
  }
}

TEST_F(CalibrationRunTest, AnswersOutOfTurnChangeNothing) {
  begin({"a", "b"}, {"c"});
  EXPECT_FALSE(say(tasks_[0], compute(1.0)));
  EXPECT_EQ(say(tasks_[0], compute(9.0))->refusal, Refusal::kDuplicate);
  CalibrationTask other = tasks_[1];
  other.step = 7;
  EXPECT_EQ(say(other, compute(9.0))->refusal, Refusal::kWrongState);
  other = tasks_[1];
  other.node = NodeId(101);
  EXPECT_EQ(say(other, compute(9.0))->refusal, Refusal::kWrongState) << "not asked for this";
  EXPECT_FALSE(say(tasks_[1], compute(1.0)));
  EXPECT_THAT(run_->take_tasks(), SizeIs(1));
}

TEST_F(CalibrationRunTest, APairThatDoesNotReachEachOtherIsNoReasonWhileOthersDo) {
  begin({"a", "b", "c", "d"}, {"a"});
  measure_nodes();
  CalibrationAnswer cut;
  cut.error = "connection refused";
  EXPECT_FALSE(say(tasks_[0], cut));
  EXPECT_FALSE(say(tasks_[1], link(1e9, 1e9)));
  tasks_ = run_->take_tasks();
  while (!run_->done()) answer_all(link(1e9, 1e9));
  EXPECT_TRUE(run_->result().ok());

  begin({"a", "b"}, {"a"});
  measure_nodes();
  EXPECT_FALSE(say(tasks_[0], cut));
  EXPECT_THAT(why_none(), HasSubstr("connection refused"));
}

TEST_F(CalibrationRunTest, WhoListensNowhereCanStillCall) {
  begin({"", "b"}, {"b"});
  measure_nodes();
  ASSERT_THAT(tasks_, SizeIs(1));
  EXPECT_EQ(tasks_[0].node, NodeId(1));
  begin({"b", ""}, {"b"});
  measure_nodes();
  ASSERT_THAT(tasks_, SizeIs(1));
  EXPECT_EQ(tasks_[0].node, NodeId(2));
  begin({"", ""}, {"b"});
  measure_nodes();
  while (!run_->done()) answer_all(link(1e9, 1e9));
  EXPECT_TRUE(run_->result().ok()) << "the server can be called";
}

// ---- whether at all ----

TEST(WhyNoCalibration, WhereThereIsNothingToChooseOrToSend) {
  const std::vector<PlannerLayer> layers = {{"conv", "convolution", {20, 1, 5, 5}, 520, false},
                                            {"fc", "fully_connected", {10, 500}, 5010, true}};
  const std::vector<std::string> two = {"a:1", "b:1"}, server = {"c:1"};
  const SyncSpec sync;
  EXPECT_EQ(why_no_calibration(layers, sync, two, server), "");
  SyncSpec bytes = sync, ps = sync, pinned = sync, by_name = sync;
  bytes.cost = "bytes";
  EXPECT_THAT(why_no_calibration(layers, bytes, two, server), HasSubstr("sync.cost"));
  ps.scheme = "ps";
  EXPECT_THAT(why_no_calibration(layers, ps, two, server), HasSubstr("left to choose"));
  by_name.layer_schemes["fc"] = "sfb";
  EXPECT_THAT(why_no_calibration(layers, by_name, two, server), HasSubstr("left to choose"));
  pinned.plan = nlohmann::json::object();
  EXPECT_THAT(why_no_calibration(layers, pinned, two, server), HasSubstr("sync.plan"));
  EXPECT_THAT(why_no_calibration({layers[0]}, sync, two, server), HasSubstr("left to choose"));
  EXPECT_THAT(why_no_calibration(layers, sync, {"a:1"}, server), HasSubstr("one worker"));
  EXPECT_THAT(why_no_calibration(layers, sync, {"a:1", "a:2"}, {"a:3"}), HasSubstr("one machine"));
  EXPECT_EQ(why_no_calibration(layers, sync, {"a:1", "a:2"}, server), "");
}

}  // namespace
}  // namespace poseidon::calibration_run_test
