// Programs that declare their job, and join as its workers.

#include <string>

#include "coordinator/service_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::service_declare_test {
namespace {

using ::testing::HasSubstr;

/// The fixture's resolver takes a job with "declared" in it for one of programs.
class DeclareTest : public ServiceTest {
 protected:
  grpc::Status declare(std::uint32_t workers, const std::string& job = R"({"declared": 1})",
                       std::uint32_t rank = 0) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::DeclareRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_rank(rank);
    request.mutable_submit()->set_job_json(job);
    request.mutable_submit()->set_workers(workers);
    request.mutable_submit()->set_servers(1);
    return stub_->Declare(&context, request, &declared_);
  }
  FakeNode& add_program(const std::string& job, std::uint32_t rank,
                        FakeNode::Plays plays = FakeNode::Plays::kWholeJob) {
    v1::Join join = join_as(v1::NODE_ROLE_WORKER, "");
    join.set_job(job);
    join.set_rank(rank);
    nodes_.push_back(std::make_unique<FakeNode>(address_, join, plays));
    EXPECT_TRUE(nodes_.back()->wait_joined());
    return *nodes_.back();
  }

  v1::DeclareResponse declared_;
};

TEST_F(DeclareTest, TheFirstStartsTheJobAndItsProgramsAloneTrainIt) {
  add_server(FakeNode::Plays::kWholeJob);
  FakeNode& other = add_worker(FakeNode::Plays::kReady);
  ASSERT_TRUE(declare(2).ok());
  EXPECT_TRUE(declared_.is_first());
  const std::string id = declared_.job().job_id();
  EXPECT_EQ(id, "digits-1");
  ASSERT_TRUE(declare(2).ok());
  EXPECT_FALSE(declared_.is_first());
  EXPECT_EQ(declared_.job().job_id(), id);
  EXPECT_FALSE(declared_.job().run_directory().empty());

  FakeNode& second = add_program(id, 2);
  EXPECT_EQ(status().state(), "waiting") << "the worker without a job is not taken";
  EXPECT_EQ(status().iterations(), 0u) << "not known yet";
  add_program(id, 1);
  const v1::GetStatusResponse end = await_state("done");
  EXPECT_EQ(end.iterations(), static_cast<std::uint64_t>(kIterations));
  {
    const MutexLock lock(second.mutex_);
    EXPECT_EQ(second.assigned_.at(0).index(), 1u) << "the rank that it must have";
  }
  const MutexLock lock(other.mutex_);
  EXPECT_TRUE(other.assigned_.empty());
}

TEST_F(DeclareTest, APoseidonWorkersJobUsesNoProgram) {
  add_server(FakeNode::Plays::kReady);
  ASSERT_TRUE(declare(1).ok());
  FakeNode& program = add_program("digits-1", 0, FakeNode::Plays::kReady);
  await_state("running");
  grpc::ClientContext context;
  v1::EndJobRequest request;
  request.set_protocol_version(kProtocolVersion);
  v1::EndJobResponse response;
  ASSERT_TRUE(stub_->EndJob(&context, request, &response).ok());
  await_state("stopped");
  ASSERT_TRUE(submit(1, 1).ok());
  EXPECT_THAT(await_state("waiting").message(), HasSubstr("0 of 1 workers"));
  const MutexLock lock(program.mutex_);
  EXPECT_EQ(program.assigned_.size(), 1u);
}

TEST_F(DeclareTest, AnotherProgramIsRefusedWithTheFirstDifference) {
  ASSERT_TRUE(declare(2, R"({"declared": 1, "batch_size": 32})").ok());
  grpc::Status status = declare(2, R"({"declared": 1, "batch_size": 16})");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("job digits-1"));
  EXPECT_THAT(status.error_message(), HasSubstr("batch_size is 16 here, 32 there"));
  status = declare(3, R"({"declared": 1, "batch_size": 32})");
  EXPECT_THAT(status.error_message(), HasSubstr("3 workers here, 2 there"));
}

TEST_F(DeclareTest, OnlyAProgramsJobIsDeclaredWithRanksItHas) {
  EXPECT_THAT(declare(1, "{}").error_message(), HasSubstr("poseidon-worker trains"));
  EXPECT_THAT(declare(2, R"({"declared": 1})", 3).error_message(),
              HasSubstr("rank 2 of 2 workers"));
  EXPECT_EQ(declare(0).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(declare(1, "wrong").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_TRUE(submit(1, 1).ok());
  EXPECT_THAT(declare(1).error_message(), HasSubstr("one job at a time"));
}

TEST_F(DeclareTest, AProgramWithoutItsJobIsSentAway) {
  v1::Join join = join_as(v1::NODE_ROLE_WORKER, "");
  join.set_job("digits-9");
  FakeNode node(address_, join, FakeNode::Plays::kReady);
  EXPECT_THAT(node.wait_result().message(), HasSubstr("is not the job of this cluster"));
}

}  // namespace
}  // namespace poseidon::service_declare_test
