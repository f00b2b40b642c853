// The coordinator as its nodes see it: real gRPC on loopback, real ControlClients, one process.

#include "coordinator/service.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>
#include <thread>

#include "common/check.h"
#include "common/control_client.h"
#include "common/plan_proto.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "poseidon/v1/control.grpc.pb.h"

namespace poseidon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
namespace fs = std::filesystem;

// Ends a test that hangs; no test waits it out. Long, because ThreadSanitizer looks up every one of
// the thousands of reports inside gRPC before it suppresses it.
constexpr std::chrono::seconds kPatience{60};
constexpr int kIterations = 5;

std::string read_file(const fs::path& path) {
  std::stringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

/// A port that was free a moment ago.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  POSEIDON_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "bind");
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

v1::Join join_as(v1::NodeRole role, const std::string& address) {
  v1::Join join;
  join.set_role(role);
  join.set_address(address);
  join.set_device("cpu");
  return join;
}

/// A node played by a test: joins, records what it hears, and, when told to, does a whole job.
class FakeNode final : public ControlEvents {
 public:
  enum class Plays { kNothing, kReady, kWholeJob };

  FakeNode(const std::string& coordinator, v1::Join join, Plays plays,
           Milliseconds join_timeout = Milliseconds(20000))
      : plays_(plays),
        is_worker_(join.role() == v1::NODE_ROLE_WORKER),
        client_({.coordinator = coordinator, .join = std::move(join), .join_timeout = join_timeout},
                this),
        thread_([this] {
          const absl::Status status = client_.run();
          const std::lock_guard<std::mutex> lock(mutex_);
          result_ = status;
          changed_.notify_all();
        }) {}
  ~FakeNode() override {
    client_.stop("the test ends");
    thread_.join();
    if (uploader_.joinable()) uploader_.join();
  }

  void on_joined(const v1::Joined& joined) override {
    note([&] { joined_.push_back(joined); });
  }
  void on_assign(const v1::Assignment& assignment) override {
    EXPECT_TRUE(plan_from_message(assignment.plan()).ok());
    note([&] { assigned_.push_back(assignment); });
    if (plays_ == Plays::kNothing) return;
    v1::NodeMessage ready;
    ready.mutable_ready()->set_epoch(assignment.plan().epoch());
    EXPECT_TRUE(client_.send(ready));
  }
  void on_start(const v1::Start& start) override {
    std::uint32_t rank = 0;
    note([&] {
      ++starts_;
      rank = assigned_.back().index();
    });
    if (plays_ != Plays::kWholeJob) return;
    for (int i = 0; i < kIterations; ++i) {
      v1::NodeMessage report;
      report.mutable_iteration()->set_epoch(start.epoch());
      report.mutable_iteration()->set_iteration(static_cast<std::uint64_t>(i));
      report.mutable_iteration()->set_loss(1.0 + rank);
      EXPECT_TRUE(client_.send(report));
    }
    v1::NodeMessage test;
    test.mutable_test()->set_epoch(start.epoch());
    test.mutable_test()->set_iteration(kIterations);
    test.mutable_test()->set_loss_sum(5.0);
    test.mutable_test()->set_correct(9);
    test.mutable_test()->set_samples(10);
    EXPECT_TRUE(client_.send(test));
    uploader_ = std::thread([this, rank, epoch = start.epoch()] { finish(rank, epoch); });
  }
  void on_stop(const v1::StopJob& stop) override {
    note([&] { stops_.push_back(stop); });
  }
  void on_lost(const absl::Status& reason) override {
    note([&] { lost_.push_back(reason); });
  }
  void fill_heartbeat(v1::Heartbeat& heartbeat) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++heartbeats_;
    v1::RefusedCount* refused = heartbeat.add_refused();
    refused->set_reason("stale_data");
    refused->set_count(2);
    if (!is_worker_ || assigned_.empty()) return;
    v1::LayerTraffic* layer = heartbeat.add_layers();
    layer->set_layer(0);
    layer->set_sent_bytes(1000 * heartbeats_);
    layer->set_received_bytes(2000 * heartbeats_);
  }

  /// Waits for a condition on what was heard.
  template <typename Condition>
  [[nodiscard]] bool wait(Condition condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, condition);
  }
  [[nodiscard]] bool wait_joined(std::size_t times = 1) {
    return wait([&] { return joined_.size() >= times; });
  }
  [[nodiscard]] bool wait_stop() {
    return wait([&] { return !stops_.empty(); });
  }
  absl::Status wait_result() {
    EXPECT_TRUE(wait([&] { return result_.has_value(); }));
    const std::lock_guard<std::mutex> lock(mutex_);
    return result_.value_or(absl::UnknownError("run() did not return"));
  }
  ControlClient& client() { return client_; }
  std::string model() const { return model_; }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<v1::Joined> joined_;
  std::vector<v1::Assignment> assigned_;
  std::vector<v1::StopJob> stops_;
  std::vector<absl::Status> lost_;
  int starts_ = 0;
  std::uint64_t heartbeats_ = 0;
  std::optional<absl::Status> result_;

 private:
  void finish(std::uint32_t rank, std::uint64_t epoch) {
    if (rank == 0) {
      const absl::Status uploaded = client_.upload_model(epoch, model_);
      EXPECT_TRUE(uploaded.ok()) << uploaded;
    }
    v1::NodeMessage finished;
    finished.mutable_finished()->set_epoch(epoch);
    EXPECT_TRUE(client_.send(finished));
  }

  template <typename Change>
  void note(Change change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change();
    changed_.notify_all();
  }

  const Plays plays_;
  const bool is_worker_;
  const std::string model_ = std::string(1 << 20, 'm') + "end";  // more than one part
  ControlClient client_;
  std::thread uploader_;
  std::thread thread_;
};

/// Speaks the protocol by hand: may say anything, and nothing.
class RawNode {
 public:
  explicit RawNode(const std::string& coordinator)
      : stub_(v1::Coordinator::NewStub(
            grpc::CreateChannel(coordinator, grpc::InsecureChannelCredentials()))) {
    context_.set_deadline(std::chrono::system_clock::now() + kPatience);
    stream_ = stub_->Attach(&context_);
  }
  ~RawNode() { drop(); }
  void send(const v1::NodeMessage& message) { stream_->Write(message); }
  void join(v1::Join join, std::uint32_t version = kProtocolVersion) {
    v1::NodeMessage message;
    join.set_protocol_version(version);
    *message.mutable_join() = std::move(join);
    send(message);
  }
  std::optional<v1::CoordinatorMessage> receive() {
    v1::CoordinatorMessage message;
    if (!stream_->Read(&message)) return std::nullopt;
    return message;
  }
  /// Reads to the end.
  grpc::Status end() {
    while (receive()) {
    }
    finished_ = true;
    return stream_->Finish();
  }
  void drop() {
    if (finished_) return;
    finished_ = true;
    context_.TryCancel();
    stream_->Finish();
  }

 private:
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NodeMessage, v1::CoordinatorMessage>> stream_;
  bool finished_ = false;
};

absl::StatusOr<ResolvedJob> resolver(const std::string& job_json) {
  if (job_json == "wrong") return absl::InvalidArgumentError("batch_size: missing");
  ResolvedJob job;
  job.name = "digits";
  job.batch_size = 32;
  job.iterations = kIterations;
  job.layers = {{"conv", "convolution", {20, 1, 5, 5}, 520, false},
                {"fc", "fully_connected", {10, 500}, 5010, true}};
  job.learning_rate = [](Iteration) { return 0.05; };
  return job;
}

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("poseidon_service_test_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    start();
  }
  void TearDown() override {
    nodes_.clear();
    service_.reset();
    fs::remove_all(folder_);
  }

  CoordinatorOptions options() {
    CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = folder_ / "state";
    return options;
  }
  void start() { start(options()); }
  void start(const CoordinatorOptions& options) {
    service_.reset();
    auto service = CoordinatorService::start(options, resolver, &clock_);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    address_ = service_->address();
    stub_ =
        v1::Coordinator::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  /// A lease that runs out while a test looks on, yet holds thirty heartbeats: a busy machine may
  /// delay some.
  void start_with_short_lease() {
    CoordinatorOptions short_lease = options();
    short_lease.cluster.membership = {.lease = Milliseconds(1500), .heartbeat = Milliseconds(50)};
    start(short_lease);
  }

  FakeNode& add(v1::NodeRole role, FakeNode::Plays plays) {
    const std::string address =
        role == v1::NODE_ROLE_SERVER ? "127.0.0.1:" + std::to_string(5000 + nodes_.size()) : "";
    nodes_.push_back(std::make_unique<FakeNode>(address_, join_as(role, address), plays));
    EXPECT_TRUE(nodes_.back()->wait_joined());
    return *nodes_.back();
  }
  FakeNode& add_worker(FakeNode::Plays plays) { return add(v1::NODE_ROLE_WORKER, plays); }
  FakeNode& add_server(FakeNode::Plays plays) { return add(v1::NODE_ROLE_SERVER, plays); }

  grpc::Status submit(std::uint32_t workers, std::uint32_t servers, const std::string& job = "{}") {
    v1::SubmitRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_job_json(job);
    request.set_run_directory((folder_ / "run").string());
    request.set_workers(workers);
    request.set_servers(servers);
    return submit(request);
  }
  grpc::Status submit(const v1::SubmitRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    return stub_->Submit(&context, request, &submitted_);
  }
  v1::GetStatusResponse status() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::GetStatusRequest request;
    request.set_protocol_version(kProtocolVersion);
    v1::GetStatusResponse response;
    const grpc::Status status = stub_->GetStatus(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  /// Asks again until the answer suits.
  v1::GetStatusResponse await(const std::function<bool(const v1::GetStatusResponse&)>& suits) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    v1::GetStatusResponse response = status();
    while (!suits(response) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(Milliseconds(5));
      response = status();
    }
    EXPECT_TRUE(suits(response)) << response.DebugString();
    return response;
  }
  v1::GetStatusResponse await_state(const std::string& state) {
    return await([&](const v1::GetStatusResponse& r) { return r.state() == state; });
  }
  std::uint64_t refused(const std::string& reason) {
    const v1::GetStatusResponse response = status();
    for (const v1::RefusedCount& count : response.refused()) {
      if (count.reason() == reason) return count.count();
    }
    return 0;
  }
  /// A job in the state running, of one worker and one server that do no more than say Ready.
  void run_job() {
    add_server(FakeNode::Plays::kReady);
    add_worker(FakeNode::Plays::kReady);
    ASSERT_TRUE(submit(1, 1).ok());
    await_state("running");
  }

  SystemClock clock_;
  fs::path folder_;
  std::unique_ptr<CoordinatorService> service_;
  std::string address_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::vector<std::unique_ptr<FakeNode>> nodes_;
  v1::SubmitResponse submitted_;
};

// ---- a whole job ----

TEST_F(ServiceTest, AWholeJobFromSubmitToItsFiles) {
  for (int i = 0; i < 2; ++i) add_server(FakeNode::Plays::kWholeJob);
  for (int i = 0; i < 3; ++i) add_worker(FakeNode::Plays::kWholeJob);
  EXPECT_EQ(status().state(), "idle");
  const grpc::Status submitted = submit(3, 2, R"({"name": "digits"})");
  ASSERT_TRUE(submitted.ok()) << submitted.error_message();
  EXPECT_EQ(submitted_.job_id(), "digits-1");
  for (const auto& node : nodes_) {
    ASSERT_TRUE(node->wait_stop());
    EXPECT_TRUE(node->stops_[0].succeeded()) << node->stops_[0].reason();
    EXPECT_EQ(node->assigned_[0].job_json(), R"({"name": "digits"})");
  }
  const v1::GetStatusResponse done = await_state("done");
  EXPECT_EQ(done.job(), "digits");
  EXPECT_EQ(done.iteration(), 5u);
  EXPECT_EQ(done.iterations(), 5u);
  EXPECT_EQ(done.loss(), 2.0) << "mean of 1, 2 and 3";
  EXPECT_EQ(done.test_loss(), 0.5);
  EXPECT_EQ(done.test_accuracy(), 0.9);
  EXPECT_EQ(done.tested_iteration(), 5u);
  EXPECT_EQ(done.workers_size(), 3);
  EXPECT_EQ(done.servers_size(), 2);
  EXPECT_EQ(done.layers_size(), 2);
  EXPECT_EQ(done.layers(1).name(), "fc");
  EXPECT_EQ(done.layers(1).scheme(), "ps");

  const fs::path run = folder_ / "run";
  std::istringstream metrics(read_file(run / "metrics.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(metrics, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_THAT(lines, SizeIs(kIterations + 1));
  for (int i = 0; i < kIterations; ++i)
    EXPECT_EQ(lines[static_cast<std::size_t>(i)]["iteration"], i);
  EXPECT_EQ(lines[0]["loss"], 2.0);
  EXPECT_EQ(lines[0]["learning_rate"], 0.05);
  EXPECT_EQ(lines[5]["test_accuracy"], 0.9);
  EXPECT_EQ(read_file(run / "model.safetensors"), nodes_[0]->model());
  EXPECT_EQ(read_file(run / "job.json"), R"({"name": "digits"})");
  EXPECT_EQ(nlohmann::json::parse(read_file(run / "plan.json"))["workers"], 3);
  EXPECT_EQ(std::distance(fs::directory_iterator(run), {}), 4) << "and no temporary files";
}

TEST_F(ServiceTest, TheNextJobRunsOnTheSameNodesInANewEpoch) {
  add_server(FakeNode::Plays::kWholeJob);
  for (std::size_t round = 1; round <= 2; ++round) {
    if (round == 1) add_worker(FakeNode::Plays::kReady);
    ASSERT_TRUE(submit(1, 1).ok());
    await_state("running");
    EXPECT_EQ(status().epoch(), round);
    // Round 1 ends with its worker, which leaves.
    if (round == 1) {
      nodes_.pop_back();
      await_state("failed");
      add_worker(FakeNode::Plays::kReady);
    }
  }
}

TEST_F(ServiceTest, StatusShowsNodesAndTheirTraffic) {
  start_with_short_lease();
  run_job();
  const v1::GetStatusResponse response = await([](const v1::GetStatusResponse& r) {
    return r.layers_size() == 2 && r.layers(0).sent_bytes_per_s() > 0.0;
  });
  EXPECT_NEAR(response.layers(0).received_bytes_per_s() / response.layers(0).sent_bytes_per_s(),
              2.0, 1e-9);
  EXPECT_EQ(response.layers(1).sent_bytes_per_s(), 0.0);
  ASSERT_EQ(response.workers_size(), 1);
  EXPECT_EQ(response.workers(0).rank(), 0);
  EXPECT_EQ(response.workers(0).state(), "running");
  EXPECT_EQ(response.workers(0).device(), "cpu");
  EXPECT_EQ(response.servers(0).address(), "127.0.0.1:5000");
  EXPECT_TRUE(std::isnan(response.loss()));
  EXPECT_EQ(refused("stale_data"), 4u) << "2 from each of two nodes, as running totals";
}

// ---- who may join ----

TEST_F(ServiceTest, AWorkerThatComesLateIsToldToWait) {
  run_job();
  FakeNode& late = add_worker(FakeNode::Plays::kReady);
  EXPECT_THAT(late.joined_[0].note(),
              HasSubstr("job digits-1 is running with 1 workers and 1 servers; this worker waits"));
  const v1::GetStatusResponse response = status();
  ASSERT_EQ(response.workers_size(), 2);
  EXPECT_EQ(response.workers(1).rank(), -1);
  EXPECT_EQ(response.workers(1).state(), "idle");
}

TEST_F(ServiceTest, AnotherProtocolVersionIsRefusedInPlainWords) {
  RawNode node(address_);
  node.join(join_as(v1::NODE_ROLE_WORKER, "10.0.0.2:4711"), 2);
  const grpc::Status end = node.end();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(end.error_message(),
            "this coordinator speaks protocol 1, worker 10.0.0.2:4711 speaks 2: install the same "
            "Poseidon version everywhere");
  EXPECT_EQ(refused("version"), 1u);

  v1::SubmitRequest request;
  EXPECT_THAT(submit(request).error_message(), HasSubstr("the command line tool speaks 0"));
}

TEST_F(ServiceTest, AWildcardHostBecomesTheOneThatIsSeen) {
  FakeNode node(address_, join_as(v1::NODE_ROLE_SERVER, "0.0.0.0:4711"), FakeNode::Plays::kReady);
  ASSERT_TRUE(node.wait_joined());
  EXPECT_EQ(status().servers(0).address(), "127.0.0.1:4711");
}

TEST_F(ServiceTest, JoinsThatMakeNoSenseEndTheClientAtOnce) {
  for (const char* address : {"", "nonsense", "host:0", "a b:1"}) {
    FakeNode node(address_, join_as(v1::NODE_ROLE_SERVER, address), FakeNode::Plays::kReady);
    EXPECT_EQ(node.wait_result().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  FakeNode node(address_, join_as(v1::NODE_ROLE_UNSPECIFIED, "h:1"), FakeNode::Plays::kReady);
  EXPECT_THAT(std::string(node.wait_result().message()), HasSubstr("Join.role"));
}

TEST_F(ServiceTest, MessagesOutOfPlaceAreRefusedAndCounted) {
  RawNode early(address_);
  v1::NodeMessage message;
  message.mutable_ready()->set_epoch(1);
  early.send(message);
  EXPECT_EQ(early.end().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused("not_joined"), 1u);

  RawNode node(address_);
  node.join(join_as(v1::NODE_ROLE_WORKER, ""));
  ASSERT_TRUE(node.receive()->has_joined());
  node.send(message);            // no job
  node.send(v1::NodeMessage());  // nothing in it
  node.join(join_as(v1::NODE_ROLE_WORKER, ""));
  await([&](const auto&) { return refused("duplicate") == 1; });
  EXPECT_EQ(refused("wrong_state"), 1u);
  EXPECT_EQ(refused("malformed"), 1u);
  EXPECT_EQ(status().workers_size(), 1) << "the node stays";
}

TEST_F(ServiceTest, ReportsOfStrangersAndStaleEpochsDoNotTouchTheJob) {
  run_job();
  RawNode stranger(address_);
  stranger.join(join_as(v1::NODE_ROLE_WORKER, ""));
  ASSERT_TRUE(stranger.receive()->has_joined());
  v1::NodeMessage report;
  report.mutable_iteration()->set_epoch(1);
  report.mutable_iteration()->set_loss(1.0);
  stranger.send(report);
  await([&](const auto&) { return refused("not_in_job") == 1; });
  report.mutable_iteration()->set_epoch(99);
  EXPECT_TRUE(nodes_[1]->client().send(report));
  await([&](const auto&) { return refused("stale_epoch") == 1; });
  report.mutable_iteration()->set_epoch(1);
  report.mutable_iteration()->set_iteration(UINT64_MAX);
  EXPECT_TRUE(nodes_[1]->client().send(report));
  v1::NodeMessage traffic;
  traffic.mutable_heartbeat()->add_layers()->set_layer(1000);
  EXPECT_TRUE(nodes_[1]->client().send(traffic));
  await([&](const auto&) { return refused("malformed") == 1; });
  EXPECT_EQ(refused("duplicate"), 1u);
  EXPECT_EQ(status().state(), "running");
  EXPECT_EQ(status().iteration(), 0u);
}

// ---- losing nodes ----

TEST_F(ServiceTest, ADroppedStreamFailsTheJobAndNamesTheNode) {
  FakeNode& server = add_server(FakeNode::Plays::kReady);
  RawNode worker(address_);
  worker.join(join_as(v1::NODE_ROLE_WORKER, "10.0.0.2:4711"));
  ASSERT_TRUE(worker.receive()->has_joined());
  ASSERT_TRUE(submit(1, 1).ok());
  ASSERT_TRUE(worker.receive()->has_assign());
  worker.drop();
  const v1::GetStatusResponse failed = await_state("failed");
  EXPECT_THAT(failed.message(), HasSubstr("worker 0 (10.0.0.2:4711) was lost"));
  ASSERT_TRUE(server.wait_stop());
  EXPECT_FALSE(server.stops_[0].succeeded());
  EXPECT_EQ(server.stops_[0].reason(), failed.message());
  EXPECT_EQ(failed.workers(0).state(), "lost");
}

TEST_F(ServiceTest, SilenceLongerThanTheLeaseFailsTheJob) {
  start_with_short_lease();
  add_server(FakeNode::Plays::kReady);
  RawNode worker(address_);  // joins, then says nothing, its stream stays open
  worker.join(join_as(v1::NODE_ROLE_WORKER, ""));
  ASSERT_TRUE(worker.receive()->has_joined());
  ASSERT_TRUE(submit(1, 1).ok());
  const v1::GetStatusResponse failed = await_state("failed");
  EXPECT_THAT(failed.message(),
              AllOf(HasSubstr("worker 0"), HasSubstr("was silent for"), HasSubstr("lease 1.5 s")));
  const grpc::Status end = worker.end();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(end.error_message(), HasSubstr("was silent"));
}

TEST_F(ServiceTest, AHeartbeatKeepsABusyNodeAlive) {
  start_with_short_lease();
  run_job();
  std::this_thread::sleep_for(Milliseconds(3200));  // more than two leases
  EXPECT_EQ(status().state(), "running");
  const std::lock_guard<std::mutex> lock(nodes_[0]->mutex_);
  EXPECT_GE(nodes_[0]->heartbeats_, 5u);
}

TEST_F(ServiceTest, ANodeThatNeverJoinsIsSentAway) {
  start_with_short_lease();
  RawNode node(address_);
  EXPECT_EQ(node.end().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, LeavingCleanlyIsSeenAtOnce) {
  FakeNode& worker = add_worker(FakeNode::Plays::kReady);
  worker.client().stop("SIGTERM");
  EXPECT_TRUE(worker.wait_result().ok());
  await([](const v1::GetStatusResponse& r) { return r.workers_size() == 0; });
}

// ---- submitting ----

TEST_F(ServiceTest, ASecondSubmitIsRefusedAndNamesTheFirst) {
  ASSERT_TRUE(submit(1, 1).ok());
  const grpc::Status second = submit(1, 1);
  EXPECT_EQ(second.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(second.error_message(), HasSubstr("job digits-1 is waiting (0 of 5 iterations)"));
  EXPECT_EQ(status().job_id(), "digits-1");
}

TEST_F(ServiceTest, WrongSubmitsAreRefusedAndStartNothing) {
  EXPECT_EQ(submit(1, 1, "wrong").error_message(), "batch_size: missing");
  EXPECT_THAT(submit(65, 1).error_message(), HasSubstr("65 workers are asked for"));
  EXPECT_THAT(submit(5000, 1).error_message(), HasSubstr("at most 1024 nodes"));
  v1::SubmitRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_run_directory("relative");
  EXPECT_THAT(submit(request).error_message(), HasSubstr("absolute"));
  request.set_run_directory("/proc/nowhere");
  const grpc::Status unwritable = submit(request);
  EXPECT_EQ(unwritable.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unwritable.error_message(), HasSubstr("/proc/nowhere"));
  request.set_run_directory("");
  request.set_job_json(std::string(5 << 20, ' '));
  EXPECT_THAT(submit(request).error_message(), HasSubstr("5242880 bytes"));
  EXPECT_EQ(status().state(), "idle");
  request.set_job_json("{}");
  ASSERT_TRUE(submit(request).ok()) << "nothing of that stands in the way";
  EXPECT_THAT(submitted_.run_directory(), HasSubstr((folder_ / "state" / "runs").string()));
}

// ---- the model ----

TEST_F(ServiceTest, ModelsThatDoNotFitAreRefused) {
  run_job();
  ControlClient& client = nodes_[1]->client();
  EXPECT_THAT(client.upload_model(99, "model").ToString(), HasSubstr("epoch 99"));
  EXPECT_THAT(client.upload_model(1, std::string(80 << 20, 'x')).ToString(), HasSubstr("at most"));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1::UploadModelResponse response;
  const auto writer = stub_->UploadModel(&context, &response);
  v1::ModelPart part;
  part.set_epoch(1);
  part.set_total_bytes(100);
  part.set_data("short");
  writer->Write(part);
  writer->WritesDone();
  EXPECT_THAT(writer->Finish().error_message(), HasSubstr("ended after 5 of 100 bytes"));
  EXPECT_FALSE(fs::exists(folder_ / "run" / "model.safetensors"));
  EXPECT_EQ(status().state(), "running");
  EXPECT_TRUE(client.upload_model(1, "model").ok()) << "a refused one blocks no other";
  EXPECT_EQ(read_file(folder_ / "run" / "model.safetensors"), "model");
}

// ---- ports and restarts ----

TEST_F(ServiceTest, APortInUseIsNamed) {
  CoordinatorOptions second = options();
  second.listen = address_;
  second.state_dir = folder_ / "other";
  const absl::Status status = CoordinatorService::start(second, resolver, &clock_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(address_), HasSubstr("already in use")));
}

TEST_F(ServiceTest, AStateDirectoryInUseIsNamed) {
  const absl::Status status = CoordinatorService::start(options(), resolver, &clock_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use by another coordinator"));
}

TEST_F(ServiceTest, ANodeWaitsForACoordinatorThatComesLater) {
  service_.reset();
  CoordinatorOptions later = options();
  later.listen = "127.0.0.1:" + std::to_string(free_port());
  FakeNode node(later.listen, join_as(v1::NODE_ROLE_WORKER, ""), FakeNode::Plays::kReady);
  EXPECT_FALSE(node.client().send(v1::NodeMessage())) << "there is no stream yet";
  std::this_thread::sleep_for(Milliseconds(300));  // some tries fail first
  start(later);
  EXPECT_TRUE(node.wait_joined());
}

TEST_F(ServiceTest, ANodeGivesUpOnACoordinatorThatNeverComes) {
  const std::string nowhere = "127.0.0.1:" + std::to_string(free_port());
  FakeNode node(nowhere, join_as(v1::NODE_ROLE_WORKER, ""), FakeNode::Plays::kReady,
                Milliseconds(500));
  const absl::Status status = node.wait_result();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no coordinator answered at " + nowhere +
                        " for 0.5 s: is poseidon-coordinator running there?"));
}

TEST_F(ServiceTest, StopEndsTheSearchForACoordinator) {
  FakeNode node("127.0.0.1:" + std::to_string(free_port()), join_as(v1::NODE_ROLE_WORKER, ""),
                FakeNode::Plays::kReady);
  node.client().stop("SIGTERM");
  EXPECT_TRUE(node.wait_result().ok());
}

TEST_F(ServiceTest, NodesOutliveARestartOfTheCoordinator) {
  run_job();
  CoordinatorOptions again = options();
  again.listen = address_;
  service_->shutdown("SIGTERM");
  ASSERT_TRUE(nodes_[1]->wait_stop());
  EXPECT_THAT(nodes_[1]->stops_[0].reason(), HasSubstr("the coordinator was stopped (SIGTERM)"));
  start(again);
  for (const auto& node : nodes_) {
    EXPECT_TRUE(node->wait_joined(2));
    EXPECT_THAT(node->lost_, SizeIs(1));
  }
  ASSERT_TRUE(submit(1, 1).ok());
  EXPECT_EQ(submitted_.job_id(), "digits-2") << "epochs are never given twice";
}

// ---- hostile bytes ----

TEST_F(ServiceTest, GarbageOnThePortHarmsNobody) {
  run_job();
  const int port = std::stoi(address_.substr(address_.rfind(':') + 1));
  SplitMix64 random(7);
  for (int round = 0; round < 20; ++round) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    std::string bytes;
    if (round % 3 == 1) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if (round % 3 == 2) bytes = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    for (int i = 0; i < 5000; ++i) bytes += static_cast<char>(random.next());
    [[maybe_unused]] const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::close(fd);
  }
  EXPECT_EQ(status().state(), "running");
  EXPECT_EQ(status().workers_size(), 1);
}

TEST_F(ServiceTest, AnOversizeMessageEndsOnlyItsOwnStream) {
  run_job();
  RawNode node(address_);
  node.join(join_as(v1::NODE_ROLE_WORKER, ""));
  ASSERT_TRUE(node.receive()->has_joined());
  v1::NodeMessage message;
  message.mutable_failed()->set_reason(std::string(20 << 20, 'x'));
  node.send(message);
  EXPECT_FALSE(node.end().ok());
  await([](const v1::GetStatusResponse& r) { return r.workers_size() == 1; });
  EXPECT_EQ(status().state(), "running");
}

}  // namespace
}  // namespace poseidon
