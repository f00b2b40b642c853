#pragma once

// The coordinator as its nodes see it, for its tests: real gRPC on loopback, real ControlClients,
// one process.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/files/safetensors.h"
#include "common/files/sha256.h"
#include "common/grpc/grpc_transport.h"
#include "common/node/control_client.h"
#include "common/plan/plan_proto.h"
#include "common/threads/mutex.h"
#include "coordinator/service.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "poseidon/v1/control.grpc.pb.h"
#include "tests/support/eventually.h"

namespace poseidon {

// Ends a hanging test; no passing test waits for it. Long, because ThreadSanitizer looks up every
// one of the thousands of reports inside gRPC before it suppresses it.
inline constexpr std::chrono::seconds kPatience{60};
inline constexpr int kIterations = 5;

inline std::string read_file(const std::filesystem::path& path) {
  std::stringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

/// A port that was free a moment ago.
inline int free_port() {
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

inline v1::Join join_as(v1::NodeRole role, const std::string& address) {
  v1::Join join;
  join.set_role(role);
  join.set_incarnation(7);  // so that others can speak in its name
  join.set_address(address);
  join.set_device("cpu");
  return join;
}

/// A safetensors file with one tensor of that many elements.
inline std::string model_file(const std::string& tensor, std::int64_t elements) {
  const std::vector<float> values(static_cast<std::size_t>(elements), 1.0f);
  const TensorView view{.name = tensor, .shape = {elements}, .values = values};
  const auto encoded = encode_safetensors(std::span(&view, 1));
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  return encoded->header + std::string(encoded->values.front());
}

/// A node played by a test: joins, records messages, and, on request, does a whole job.
class FakeNode final : public ControlEvents {
 public:
  enum class Plays { kNothing, kReady, kWholeJob };

  FakeNode(const std::string& coordinator, v1::Join join, Plays plays,
           Milliseconds join_timeout = Milliseconds(20000))
      : plays_(plays),
        is_worker_(join.role() == v1::NODE_ROLE_WORKER),
        client_({.transport = &transport_.add_method(kAttachMethod, kAttachKeepalive),
                 .coordinator = coordinator,
                 .join = std::move(join),
                 .join_timeout = join_timeout,
                 .on_turn = [this] { note([&] { ++turns_; }); }},
                this),
        thread_([this] {
          transport_.start();
          const absl::Status status = client_.run();
          const MutexLock lock(mutex_);
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
  void on_halt(const v1::Halt& /*halt*/) override {}
  void on_save_checkpoint(const v1::SaveCheckpoint& /*save*/) override {}
  void on_forget_checkpoint(const v1::ForgetCheckpoint& /*forget*/) override {}
  void on_calibrate(const v1::Calibrate& calibrate) override {
    std::function<std::optional<v1::CalibrationReport>(const v1::Calibrate&)> answer;
    note([&] {
      calibrations_.push_back(calibrate);
      answer = measures_;
    });
    if (!answer) return;
    if (std::optional<v1::CalibrationReport> report = answer(calibrate)) {
      report->set_epoch(calibrate.epoch());
      report->set_step(calibrate.step());
      v1::NodeMessage message;
      *message.mutable_calibration() = *std::move(report);
      EXPECT_TRUE(client_.send(message));
    }
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
    report_iterations(start.epoch(), rank);
    v1::NodeMessage test;
    test.mutable_test()->set_epoch(start.epoch());
    test.mutable_test()->set_iteration(kIterations);
    test.mutable_test()->set_loss_sum(5.0);
    test.mutable_test()->set_correct(9);
    test.mutable_test()->set_samples(10);
    EXPECT_TRUE(client_.send(test));
    if (uploader_.joinable()) uploader_.join();  // of the job before
    uploader_ = std::thread([this, rank, epoch = start.epoch()] { finish(rank, epoch); });
  }
  void on_stop(const v1::StopJob& stop) override {
    note([&] { stops_.push_back(stop); });
  }
  void on_away(const absl::Status& reason) override {
    note([&] { away_.push_back(reason); });
  }
  void on_lost(const absl::Status& reason) override {
    note([&] { lost_.push_back(reason); });
  }
  void fill_heartbeat(v1::Heartbeat& heartbeat) override {
    const MutexLock lock(mutex_);
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

  /// Waits for a condition on the received messages.
  template <typename Condition>
  [[nodiscard]] bool wait(Condition condition) {
    MutexLock lock(mutex_);
    return changed_.wait_for(mutex_, kPatience, condition);
  }
  [[nodiscard]] bool wait_joined(std::size_t times = 1) {
    return wait([&] { return joined_.size() >= times; });
  }
  [[nodiscard]] bool wait_stop() {
    return wait([&] { return !stops_.empty(); });
  }
  /// Of the first; "" before it.
  std::string stop_reason() {
    const MutexLock lock(mutex_);
    return stops_.empty() ? "" : stops_.front().reason();
  }
  absl::Status wait_result() {
    EXPECT_TRUE(wait([&] { return result_.has_value(); }));
    const MutexLock lock(mutex_);
    return result_.value_or(absl::UnknownError("run() did not return"));
  }
  void report_iterations(std::uint64_t epoch, std::uint32_t rank) {
    for (int i = 0; i < kIterations; ++i) {
      v1::NodeMessage report;
      report.mutable_iteration()->set_epoch(epoch);
      report.mutable_iteration()->set_iteration(static_cast<std::uint64_t>(i));
      report.mutable_iteration()->set_loss(1.0 + rank);
      EXPECT_TRUE(client_.send(report));
    }
  }
  ControlClient& client() { return client_; }
  std::string model() const { return model_; }

  Mutex mutex_;
  CondVar changed_;
  // Guarded by mutex_; tests read them when all is quiet, too.
  std::vector<v1::Joined> joined_;
  std::vector<v1::Calibrate> calibrations_;
  /// How it answers; by default not at all. Set before the job is submitted.
  std::function<std::optional<v1::CalibrationReport>(const v1::Calibrate&)> measures_;
  std::vector<v1::Assignment> assigned_;
  std::vector<v1::StopJob> stops_;
  std::vector<absl::Status> away_;
  std::vector<absl::Status> lost_;
  int starts_ = 0;
  std::uint64_t heartbeats_ = 0;
  int turns_ = 0;  ///< of the loop that sends them
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
    const MutexLock lock(mutex_);
    change();
    changed_.notify_all();
  }

  const Plays plays_;
  const bool is_worker_;
  const std::string model_ = model_file("m", (1 << 18) + 3);  // more than one part
  GrpcTransport transport_;
  ControlClient client_;
  std::thread uploader_;
  std::thread thread_;
};

/// The measurements of an honest node for the fixture's job.
inline std::optional<v1::CalibrationReport> measured(const v1::Calibrate& task) {
  v1::CalibrationReport report;
  if (task.has_compute()) {
    for (const char* name : {"conv", "fc"}) {
      v1::LayerTimesMessage& layer = *report.add_layers();
      layer.set_name(name);
      layer.set_forward_seconds(0.01);
      layer.set_backward_seconds(0.02);
    }
    report.set_device_ops_per_s(1e10);
  } else if (task.has_sums()) {
    report.set_server_sum_bytes_per_s(1e9);
  } else {
    report.set_send_bytes_per_s(1e8);
    report.set_receive_bytes_per_s(1e8);
    report.set_latency_seconds(1e-4);
  }
  return report;
}

/// Speaks the protocol by hand: may send anything or nothing.
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

inline absl::StatusOr<ResolvedJob> resolver(const std::string& job_json) {
  if (job_json == "wrong") return absl::InvalidArgumentError("batch_size: missing");
  ResolvedJob job;
  job.name = "digits";
  job.batch_size = 32;
  job.iterations = kIterations;
  job.layers = {{"conv", "convolution", {20, 1, 5, 5}, 520, false},
                {"fc", "fully_connected", {10, 500}, 5010, true}};
  // Only tests of measurements let the coordinator request them.
  job.sync.cost = job_json.find("calibrate") == std::string::npos ? "bytes" : "time";
  job.plans_key = std::string(64, 'c');
  if (job_json.find("declared") != std::string::npos) {
    job.is_declared = job.ends_with_programs = true;
    job.iterations = 1'000'000;
  }
  job.learning_rate = [](Iteration) { return 0.05; };
  job.check_model = [](const SafetensorsHeader& file) {
    return file.find("m") != nullptr ? absl::OkStatus()
                                     : absl::InvalidArgumentError("the model lacks tensor m");
  };
  if (absl::string_view weights = job_json; absl::ConsumePrefix(&weights, "weights ")) {
    job.weights = std::string(weights);
  }
  return job;
}

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("poseidon_service_test_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    start();
  }
  void TearDown() override {
    nodes_.clear();
    service_.reset();
    std::filesystem::remove_all(folder_);
  }

  CoordinatorOptions options() {
    CoordinatorOptions options;
    options.pulse = &pulse_;
    options.listen = "127.0.0.1:0";
    options.state_dir = folder_ / "state";
    options.cluster.run_root = folder_;
    options.probes_addresses = false;  // nobody listens where these nodes say
    // These nodes save nothing, so a shutdown with a job waits only briefly for a checkpoint.
    options.cluster.shutdown_checkpoint_timeout = Milliseconds(200);
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
  v1::GetStatusResponse status() { return status(*stub_); }
  static v1::GetStatusResponse status(v1::Coordinator::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::GetStatusRequest request;
    request.set_protocol_version(kProtocolVersion);
    v1::GetStatusResponse response;
    const grpc::Status status = stub.GetStatus(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  /// Polls until the answer matches.
  v1::GetStatusResponse await(const std::function<bool(const v1::GetStatusResponse&)>& suits) {
    v1::GetStatusResponse response;
    const auto ask = [&] { return suits(response = status()); };
    EXPECT_TRUE(testing_support::eventually(ask, kPatience)) << response.DebugString();
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
  /// A job in the state running, of one worker and one server that only send Ready.
  void run_job() {
    add_server(FakeNode::Plays::kReady);
    add_worker(FakeNode::Plays::kReady);
    ASSERT_TRUE(submit(1, 1).ok());
    await_state("running");
  }

  SystemClock clock_;
  LoopPulse pulse_{"the timer", SystemClock().now()};
  std::filesystem::path folder_;
  std::unique_ptr<CoordinatorService> service_;
  std::string address_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::vector<std::unique_ptr<FakeNode>> nodes_;
  v1::SubmitResponse submitted_;
};

}  // namespace poseidon
