// The rights of each role at the coordinator: over real mutual TLS, with each role's certificate.

#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "coordinator/service_test_fixture.h"
#include "gmock/gmock.h"

namespace poseidon::service_security_test {
namespace {

using ::testing::HasSubstr;

class ServiceSecurityTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    CoordinatorOptions secured = options();
    secured.security = security(PeerRole::kCoordinator);
    coordinator_ = secured.security;
    start(secured);
  }

  std::shared_ptr<Security> security(PeerRole role) {
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(
        std::chrono::system_clock::now().time_since_epoch());
    const Validity validity{.from_unix_s = (now - std::chrono::hours(1)).count(),
                            .until_unix_s = (now + std::chrono::hours(1000)).count()};
    if (authority_.key_pem.empty()) authority_ = *make_authority("authority", validity);
    const KeyPair node = *issue_certificate(authority_, role, "node", validity);
    const std::filesystem::path folder = folder_ / "tls" / std::string(peer_role_name(role));
    std::filesystem::create_directories(folder);
    for (const auto& [name, text] :
         {std::pair("ca.crt", authority_.certificate_pem),
          std::pair("tls.crt", node.certificate_pem), std::pair("tls.key", node.key_pem)}) {
      std::ofstream(folder / name) << text;
      ::chmod((folder / name).c_str(), 0600);
    }
    auto loaded = Security::load({.tls_dir = folder.string(), .join_token_file = ""}, role);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *loaded;
  }
  std::unique_ptr<v1::Coordinator::Stub> stub_of(PeerRole role) {
    return v1::Coordinator::NewStub(
        grpc::CreateChannel(address_, security(role)->channel_credentials(kCoordinatorMethods)));
  }
  template <typename Response, typename Method, typename Request>
  static grpc::Status call(v1::Coordinator::Stub& stub, Method method, Request request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    request.set_protocol_version(kProtocolVersion);
    Response response;
    return (stub.*method)(&context, request, &response);
  }
  /// How the coordinator ends the stream of a node that joins as `says` with the certificate of
  /// `is`.
  grpc::Status join(PeerRole is, v1::NodeRole says) {
    const auto stub = stub_of(is);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const auto stream = stub->Attach(&context);
    v1::NodeMessage message;
    *message.mutable_join() = join_as(says, "127.0.0.1:5999");
    message.mutable_join()->set_protocol_version(kProtocolVersion);
    stream->Write(message);
    stream->WritesDone();
    v1::CoordinatorMessage heard;
    while (stream->Read(&heard)) {
    }
    return stream->Finish();
  }
  std::uint64_t wrong_roles() const { return coordinator_->refused(PeerRefusal::kWrongRole); }

  KeyPair authority_;
  std::shared_ptr<Security> coordinator_;
};

TEST_F(ServiceSecurityTest, OnlyOperatorsCommand) {
  for (const PeerRole role : {PeerRole::kWorker, PeerRole::kServer}) {
    const std::uint64_t before = wrong_roles();
    const auto stub = stub_of(role);
    for (const grpc::Status& status :
         {call<v1::SubmitResponse>(*stub, &v1::Coordinator::Stub::Submit, v1::SubmitRequest()),
          call<v1::GetStatusResponse>(*stub, &v1::Coordinator::Stub::GetStatus,
                                      v1::GetStatusRequest()),
          call<v1::ListCheckpointsResponse>(*stub, &v1::Coordinator::Stub::ListCheckpoints,
                                            v1::ListCheckpointsRequest()),
          call<v1::RequestCheckpointResponse>(*stub, &v1::Coordinator::Stub::RequestCheckpoint,
                                              v1::RequestCheckpointRequest()),
          call<v1::LocateCheckpointResponse>(*stub, &v1::Coordinator::Stub::LocateCheckpoint,
                                             v1::LocateCheckpointRequest()),
          call<v1::SubmitResponse>(*stub, &v1::Coordinator::Stub::RestoreCheckpoint,
                                   v1::RestoreCheckpointRequest()),
          call<v1::RemoveCheckpointsResponse>(*stub, &v1::Coordinator::Stub::RemoveCheckpoints,
                                              v1::RemoveCheckpointsRequest()),
          call<v1::EndJobResponse>(*stub, &v1::Coordinator::Stub::EndJob, v1::EndJobRequest())}) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
      EXPECT_THAT(status.error_message(), HasSubstr("is for the certificate of an operator"));
    }
    EXPECT_EQ(wrong_roles(), before + 8);
  }
  const auto stub = stub_of(PeerRole::kOperator);
  const grpc::Status status =
      call<v1::GetStatusResponse>(*stub, &v1::Coordinator::Stub::GetStatus, v1::GetStatusRequest());
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ServiceSecurityTest, NodesJoinAsWhatTheyAre) {
  for (const auto& [is, says] : {std::pair(PeerRole::kWorker, v1::NODE_ROLE_SERVER),
                                 {PeerRole::kServer, v1::NODE_ROLE_WORKER},
                                 {PeerRole::kOperator, v1::NODE_ROLE_WORKER}}) {
    const grpc::Status status = join(is, says);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  }
  EXPECT_EQ(wrong_roles(), 3U);
  EXPECT_TRUE(join(PeerRole::kWorker, v1::NODE_ROLE_WORKER).ok());
  EXPECT_TRUE(join(PeerRole::kServer, v1::NODE_ROLE_SERVER).ok());
  EXPECT_EQ(wrong_roles(), 3U);
}

TEST_F(ServiceSecurityTest, OnlyWorkersUploadTheModel) {
  const auto stub = stub_of(PeerRole::kServer);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1::UploadModelResponse response;
  const auto writer = stub->UploadModel(&context, &response);
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(wrong_roles(), 1U);
}

TEST_F(ServiceSecurityTest, StatusSaysThatConnectionsAreRefusedAsTooMany) {
  const auto stub = stub_of(PeerRole::kOperator);
  const auto message = [&stub] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::GetStatusRequest request;
    request.set_protocol_version(kProtocolVersion);
    v1::GetStatusResponse response;
    const grpc::Status status = stub->GetStatus(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.message();
  };
  EXPECT_THAT(message(), ::testing::Not(HasSubstr("too_many")));
  coordinator_->refuse(PeerRefusal::kTooMany, "10.0.0.9", "this port has its maximum number");
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::string said = message();
  while (said.find("refuses connections (too_many)") == std::string::npos &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    said = message();
  }
  EXPECT_THAT(said, HasSubstr("refuses connections (too_many)"));
}

}  // namespace
}  // namespace poseidon::service_security_test
