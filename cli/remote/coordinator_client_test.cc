#include "cli/remote/coordinator_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <limits>
#include <thread>

#include "cli/terminal/outcome.h"
#include "cli/terminal/watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/control.grpc.pb.h"

namespace poseidon::coordinator_client_test {
namespace {

using ::testing::HasSubstr;

TEST(RunDir, IsAbsoluteAndAText) {
  EXPECT_TRUE(check_run_dir("/runs/r\xc3\xa9sum").ok());
  EXPECT_THAT(std::string(check_run_dir("runs/1").message()), HasSubstr("must be absolute"));
  const absl::Status status = check_run_dir("/runs/r\xe9sum");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--run-dir /runs/r?sum is not UTF-8"));
}

/// Answers with what the test put into it.
class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  FakeCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Submit(grpc::ServerContext* /*context*/, const v1::SubmitRequest* /*request*/,
                      v1::SubmitResponse* /*response*/) override {
    return {grpc::StatusCode::FAILED_PRECONDITION, "job other is running"};
  }
  grpc::Status GetStatus(grpc::ServerContext* /*context*/, const v1::GetStatusRequest* /*request*/,
                         v1::GetStatusResponse* response) override {
    const std::uint64_t call = calls++;
    if (call == cancels_at) return {grpc::StatusCode::CANCELLED, "it is stopping"};
    if (call >= refuses_from) return {grpc::StatusCode::UNAUTHENTICATED, "the token is another"};
    response->set_job("digits");
    response->set_job_id(call < job_changes_at ? "digits-1" : "other-2");
    response->set_iterations(3);
    response->set_iteration(std::min<std::uint64_t>(call, 3));
    response->set_state(call < 3 ? "running" : final_state);
    response->set_message("worker 1 is lost");
    response->set_test_accuracy(std::numeric_limits<double>::quiet_NaN());
    return grpc::Status::OK;
  }

  std::atomic<std::uint64_t> calls{0};
  std::uint64_t job_changes_at = 1000;
  std::uint64_t cancels_at = 1000;
  std::uint64_t refuses_from = 1000;
  std::string final_state = "done";

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

WatchOptions quick_watch(std::string& shown) {
  WatchOptions options;
  options.pause = [](Milliseconds) { return absl::OkStatus(); };
  options.write = [&shown](const std::string& text) { shown += text; };
  return options;
}

TEST(CoordinatorClientTest, NobodyThereIsSaidWithAddressAndRemedy) {
  // Port 1 is privileged and unused: refused at once.
  CoordinatorClient client("127.0.0.1:1");
  const auto status = client.wait_for_coordinator(Milliseconds(300)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no coordinator answers at 127.0.0.1:1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tried for 0.3 s"));
}

TEST(CoordinatorClientTest, ARefusalKeepsItsReason) {
  FakeCoordinator coordinator;
  CoordinatorClient client(coordinator.address());
  const auto status = client.submit(v1::SubmitRequest(), Milliseconds(5000)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(std::string(status.message()), "job other is running");
}

TEST(CoordinatorClientTest, WhoIsNoCoordinatorIsNamed) {
  FakeCoordinator coordinator;  // has no such method, as a server has none of them
  CoordinatorClient client(coordinator.address());
  const auto status = client.list_checkpoints(Milliseconds(5000)).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("what listens at " + coordinator.address() +
                                                       " is no poseidon-coordinator"));
}

TEST(CoordinatorClientTest, ACutSubmissionIsUnknown) {
  CoordinatorClient client("127.0.0.1:1");
  const auto status = client.submit(v1::SubmitRequest(), Milliseconds(1000)).status();
  EXPECT_TRUE(absl::IsUnknown(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("poseidon status --coordinator"));
}

TEST(WatchTest, FollowsTheJobToItsEnd) {
  FakeCoordinator coordinator;
  CoordinatorClient client(coordinator.address());
  std::string shown;
  const auto last = watch_job(client, "digits-1", {}, quick_watch(shown));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->state(), "done");
  EXPECT_THAT(shown, HasSubstr("iteration 3/3"));
}

TEST(WatchTest, AFailedJobIsAnErrorWithTheReason) {
  FakeCoordinator coordinator;
  coordinator.final_state = "failed";
  CoordinatorClient client(coordinator.address());
  std::string shown;
  const auto last = watch_job(client, "digits-1", {}, quick_watch(shown));
  ASSERT_TRUE(last.ok()) << last.status();
  const absl::Status outcome = report_outcome(*last, "");
  EXPECT_TRUE(absl::IsAborted(outcome)) << outcome;
  EXPECT_THAT(std::string(outcome.message()), HasSubstr("worker 1 is lost"));
}

TEST(WatchTest, AnotherJobInItsPlaceEndsTheWatch) {
  FakeCoordinator coordinator;
  coordinator.job_changes_at = 2;
  CoordinatorClient client(coordinator.address());
  std::string shown;
  EXPECT_TRUE(absl::IsUnknown(watch_job(client, "digits-1", {}, quick_watch(shown)).status()));
}

TEST(WatchTest, PauseEndsTheWatch) {
  FakeCoordinator coordinator;
  CoordinatorClient client(coordinator.address());
  std::string shown;
  WatchOptions options = quick_watch(shown);
  options.pause = [](Milliseconds) { return absl::CancelledError("stop"); };
  EXPECT_TRUE(absl::IsCancelled(watch_job(client, "digits-1", {}, options).status()));
}

TEST(WatchTest, ACallThatIsCancelledIsNoAnswer) {
  FakeCoordinator coordinator;
  coordinator.cancels_at = 2;
  CoordinatorClient client(coordinator.address());
  std::string shown;
  const auto last = watch_job(client, "digits-1", {}, quick_watch(shown));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->state(), "done");
}

TEST(WatchTest, ACoordinatorThatRefusesToAnswerEndsTheWatch) {
  FakeCoordinator coordinator;
  coordinator.refuses_from = 2;
  CoordinatorClient client(coordinator.address());
  std::string shown;
  const auto last = watch_job(client, "digits-1", {}, quick_watch(shown)).status();
  EXPECT_TRUE(absl::IsUnauthenticated(last)) << last;
  EXPECT_EQ(coordinator.calls, 3);
}

TEST(WatchTest, ASilentCoordinatorIsGivenUp) {
  CoordinatorClient client("127.0.0.1:1");
  std::string shown;
  WatchOptions options = quick_watch(shown);
  options.silence_limit = Milliseconds(50);
  options.pause = [](Milliseconds) {
    std::this_thread::sleep_for(Milliseconds(20));
    return absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsUnavailable(watch_job(client, "j", {}, options).status()));
}

}  // namespace
}  // namespace poseidon::coordinator_client_test
