// The messages that the coordinator refuses, and that other clients do not notice it.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "coordinator/service_test_fixture.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/support/log_capture.h"

namespace poseidon::service_hostile_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

TEST_F(ServiceTest, AnotherProtocolVersionIsRefusedInPlainWords) {
  RawNode node(address_);
  node.join(join_as(v1::NODE_ROLE_WORKER, "10.0.0.2:4711"), kProtocolVersion + 1);
  const grpc::Status end = node.end();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(end.error_message(),
            absl::StrCat("this coordinator speaks protocol ", kProtocolVersion,
                         ", worker 10.0.0.2:4711 speaks ", kProtocolVersion + 1,
                         ": install the same Poseidon version everywhere"));
  EXPECT_EQ(refused("version"), 1u);

  testing_support::LogCapture log;
  v1::SubmitRequest request;
  EXPECT_THAT(submit(request).error_message(), HasSubstr("the command line tool speaks 0"));
  grpc::ClientContext ending, tracing;
  v1::EndJobResponse ended;
  EXPECT_EQ(stub_->EndJob(&ending, {}, &ended).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(stub_->Trace(&tracing, {})->Finish().error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(refused("version"), 4u);
  EXPECT_THAT(log.end(),
              ContainsRegex("\\[warning\\] refused a message \\(version, number 2\\): Submit "
                            "from ipv4:127.0.0.1:[0-9]+: this coordinator speaks"));
}

/// Whatever is said in one message.
grpc::Status say(const std::string& address, const std::string& method, const std::string& bytes) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer message(&slice, 1);
  const auto stream =
      stub.PrepareCall(&context, absl::StrCat("/poseidon.v1.Coordinator/", method), &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::Status status;
  stream->StartCall(nullptr);
  if (wait()) {
    stream->WriteLast(message, {}, nullptr);
    wait();
  }
  grpc::ByteBuffer answer;
  do {
    stream->Read(&answer, nullptr);
  } while (wait());
  stream->Finish(&status, nullptr);
  wait();
  return status;
}

// docs/security.md. gRPC refuses it before we can count it.
TEST_F(ServiceTest, MessagesBeyondEightMebibytesAreRefusedAndNobodyElseNotices) {
  const std::string too_large((8 << 20) + 1, '\0');
  for (const char* method : {"Attach", "Submit", "UploadModel"}) {
    const grpc::Status end = say(address_, method, too_large);
    EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method;
    EXPECT_THAT(end.error_message(), HasSubstr("8388608")) << method;
  }
  RawNode node(address_);
  node.join(join_as(v1::NODE_ROLE_WORKER, "10.0.0.2:4711"));
  const std::optional<v1::CoordinatorMessage> answer = node.receive();
  EXPECT_TRUE(answer && answer->has_joined());
}

TEST_F(ServiceTest, BytesThatAreNoMessageAreCountedAndSayWhoseTheyAre) {
  testing_support::LogCapture log;
  const std::string garbage = "\xff\xff\xff\xff";
  EXPECT_EQ(say(address_, "Attach", garbage).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::uint64_t sent = 1;
  for (const char* method : {"Submit", "GetStatus", "EndJob", "ListCheckpoints", "Trace"}) {
    EXPECT_FALSE(say(address_, method, garbage).ok()) << method;
    EXPECT_EQ(refused("malformed"), ++sent) << method;
  }
  EXPECT_FALSE(say(address_, "UploadModel", garbage).ok());
  EXPECT_EQ(refused("malformed"), ++sent);
  EXPECT_THAT(log.end(), HasSubstr("[warning] refused a message (malformed, number 1): Attach"));
  EXPECT_THAT(log.end(), ContainsRegex("number 3\\): /poseidon.v1.Coordinator/GetStatus from "
                                       "ipv4:127.0.0.1:[0-9]+: bytes that are not a message"));
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

  testing_support::LogCapture log;
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
  EXPECT_THAT(log.end(),
              ContainsRegex("\\[warning\\] refused a message \\(wrong_state, number 1\\): a "
                            "job message from worker 127.0.0.1.*, node 1, but"));
  EXPECT_THAT(log.end(), Not(HasSubstr("duplicate"))) << "harmless";
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
  // A text that must be cut is not cut within a character, which would make the status unreadable.
  v1::NodeMessage reason;
  v1::RefusedCount* count = reason.mutable_heartbeat()->add_refused();
  count->set_reason(std::string(63, 'x') + "\u00e4");
  count->set_count(3);
  EXPECT_TRUE(nodes_[1]->client().send(reason));
  await([&](const auto&) { return refused(std::string(63, 'x')) == 3; });
  EXPECT_EQ(status().state(), "running");
  EXPECT_EQ(status().iteration(), 0u);
}

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
  // A file in the place of a folder.
  std::ofstream(folder_ / "file") << "text";
  request.set_run_directory((folder_ / "file" / "run").string());
  const grpc::Status unwritable = submit(request);
  EXPECT_EQ(unwritable.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unwritable.error_message(), HasSubstr((folder_ / "file").string()));
  request.set_run_directory("");
  request.set_job_json(std::string(5 << 20, ' '));
  EXPECT_THAT(submit(request).error_message(), HasSubstr("5242880 bytes"));
  EXPECT_EQ(status().state(), "idle");
  request.set_job_json("{}");
  ASSERT_TRUE(submit(request).ok()) << "nothing of that stands in the way";
  EXPECT_THAT(submitted_.run_directory(), HasSubstr((folder_ / "digits-").string()));
}

// Who may submit a job has files written with the coordinator's rights, but not anywhere.
TEST_F(ServiceTest, RunDirectoriesStayBelowTheRunRoot) {
  CoordinatorOptions narrow = options();
  narrow.cluster.run_root = "";
  start(narrow);
  const fs::path runs = folder_ / "state" / "runs";
  fs::create_directories(runs);
  fs::create_directory_symlink(folder_, runs / "out");
  fs::create_directory_symlink("round", runs / "round");
  v1::SubmitRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_job_json("{}");
  for (const fs::path& outside :
       {fs::path("/tmp/elsewhere"), folder_ / "run", folder_ / "state" / "runs-2" / "run",
        runs / ".." / "checkpoints", runs / "out" / "run", runs / "round" / "run"}) {
    request.set_run_directory(outside.string());
    const grpc::Status refused = submit(request);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << outside;
    EXPECT_THAT(refused.error_message(), HasSubstr("is not in " + runs.string())) << outside;
  }
  request.set_run_directory((runs / "a").string() + std::string(1, '\0') + "b");
  EXPECT_THAT(submit(request).error_message(), HasSubstr("has a zero byte in it"));
  EXPECT_EQ(status().state(), "idle");
  request.set_run_directory((runs / "inside").string());
  ASSERT_TRUE(submit(request).ok());
  EXPECT_EQ(submitted_.run_directory(), (runs / "inside").string());
}

/// Says that worker 0 will send a model with this digest.
v1::NodeMessage announcement(const std::string& digest) {
  v1::NodeMessage message;
  message.mutable_model()->set_epoch(1);
  message.mutable_model()->set_sha256(digest);
  return message;
}

/// Uploads in one part, and says how large the whole is and what its digest is.
grpc::Status offer(v1::Coordinator::Stub& stub, const std::string& bytes, const std::string& digest,
                   std::uint64_t total_bytes) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1::UploadModelResponse response;
  const auto writer = stub.UploadModel(&context, &response);
  v1::ModelPart part;
  part.set_epoch(1);
  part.set_total_bytes(total_bytes);
  part.set_data(bytes);
  part.set_sha256(digest);
  writer->Write(part);
  writer->WritesDone();
  return writer->Finish();
}

TEST_F(ServiceTest, ModelsThatDoNotFitAreRefused) {
  run_job();
  ControlClient& client = nodes_[1]->client();
  const std::string model = nodes_[1]->model();
  EXPECT_THAT(client.upload_model(99, model).ToString(), HasSubstr("epoch 99"));
  await([&](const auto&) { return refused("stale_epoch") == 2; });  // and its announcement
  nodes_[1]->report_iterations(1, 0);
  EXPECT_THAT(client.upload_model(1, std::string(80 << 20, 'x')).ToString(), HasSubstr("at most"));
  EXPECT_TRUE(absl::IsInvalidArgument(client.upload_model(1, "ten bytes.")));
  EXPECT_THAT(client.upload_model(1, model_file("other", 3)).ToString(),
              HasSubstr("the model lacks tensor m"));
  const std::string digest(sha256(model_file("other", 3)));
  EXPECT_THAT(offer(*stub_, "short", digest, 100).error_message(),
              HasSubstr("ended after 5 of 100 bytes"));
  EXPECT_THAT(offer(*stub_, "short", digest, 5).error_message(),
              HasSubstr("do not have the SHA-256 that worker 0 announced"));
  EXPECT_EQ(refused("malformed"), 5u);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "model.safetensors"));
  EXPECT_EQ(status().state(), "running");
  EXPECT_TRUE(client.upload_model(1, model).ok()) << "a refused one blocks no other";
  EXPECT_EQ(read_file(folder_ / "run" / "model.safetensors"), model);
}

TEST_F(ServiceTest, TenBytesOfAStrangerBecomeNothing) {
  const std::string bytes = "ten bytes.";
  const auto code = [&] { return offer(*stub_, bytes, sha256(bytes), 10).error_code(); };
  EXPECT_EQ(code(), grpc::StatusCode::FAILED_PRECONDITION) << "there is no job";
  ASSERT_TRUE(submit(1, 1).ok());
  EXPECT_EQ(code(), grpc::StatusCode::ABORTED) << "it waits for its nodes";
  add_server(FakeNode::Plays::kReady);
  add_worker(FakeNode::Plays::kReady);
  await_state("running");
  EXPECT_EQ(offer(*stub_, bytes, "", 10).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(), grpc::StatusCode::UNAVAILABLE) << "no model is announced";

  RawNode stranger(address_);
  stranger.join(join_as(v1::NODE_ROLE_WORKER, ""));
  ASSERT_TRUE(stranger.receive()->has_joined());
  stranger.send(announcement(sha256(bytes)));
  await([&](const auto&) { return refused("not_in_job") == 1; });
  std::uint64_t in_wrong_state = refused("wrong_state");
  for (const auto& node : nodes_) node->client().send(announcement(sha256(bytes)));
  await([&](const auto&) { return refused("wrong_state") == in_wrong_state + 2; });
  EXPECT_EQ(code(), grpc::StatusCode::UNAVAILABLE) << "worker 0 itself has not trained yet";

  const std::string model = nodes_[1]->model();
  nodes_[1]->report_iterations(1, 0);
  EXPECT_TRUE(nodes_[1]->client().send(announcement(sha256(model))));
  await([&](const auto&) { return code() == grpc::StatusCode::FAILED_PRECONDITION; });
  EXPECT_EQ(refused("wrong_state"), in_wrong_state + 3);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "model.safetensors"));
  EXPECT_TRUE(nodes_[1]->client().upload_model(1, model).ok());
  EXPECT_EQ(code(), grpc::StatusCode::FAILED_PRECONDITION) << "a better one is there";
  EXPECT_EQ(read_file(folder_ / "run" / "model.safetensors"), model);
  EXPECT_EQ(status().state(), "running");
}

TEST_F(ServiceTest, APortInUseIsNamed) {
  CoordinatorOptions second = options();
  second.listen = address_;
  second.state_dir = folder_ / "other";
  fs::create_directories(second.state_dir);
  const fs::path targets = fs::path(second.state_dir) / "prometheus-targets.json";
  std::ofstream(targets) << "the nodes, which train on";
  const absl::Status status = CoordinatorService::start(second, resolver, &clock_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(address_), HasSubstr("already in use")));
  EXPECT_EQ(read_file(targets), "the nodes, which train on") << "they are watched still";
}

TEST_F(ServiceTest, AStateDirectoryInUseIsNamed) {
  const absl::Status status = CoordinatorService::start(options(), resolver, &clock_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use by another coordinator"));
}

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
}  // namespace poseidon::service_hostile_test
