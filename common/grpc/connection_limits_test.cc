// What security.cc bounds at every port, seen by stock clients that would take more.

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/descriptor.h"
#include "common/grpc/grpc_transport.h"
#include "common/threads/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/data.grpc.pb.h"
#include "tests/support/eventually.h"

namespace poseidon::connection_limits_test {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience{20};

/// Takes every stream and keeps it until told otherwise.
class Host final : public Acceptor, public StreamHandler {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    streams_.push_back(std::move(stream));
    ++accepted;
    return this;
  }
  ReadNext on_message(Bytes /*message*/) override { return ReadNext::kContinue; }
  void on_written() override {}
  void on_closed(const absl::Status& /*status*/) override {}
  /// On the transport's loop.
  void end_first() { streams_.front()->close(absl::OkStatus()); }
  /// Once the loop has stopped.
  void forget() { streams_.clear(); }
  std::atomic<int> accepted{0};

 private:
  std::vector<std::unique_ptr<Stream>> streams_;  ///< the loop's
};

class ConnectionLimits : public ::testing::Test {
 protected:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::ChunkMessage, v1::ChunkMessage>> stream;
  };

  void SetUp() override {
    server_ = std::make_unique<GrpcTransport>(GrpcTransportOptions{.port = limits_});
    auto address = server_->listen("127.0.0.1:0", &host_);
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
    server_->start();
  }
  void TearDown() override {
    const MutexLock lock(mutex_);
    for (const std::unique_ptr<Call>& call : calls_) call->context.TryCancel();
    for (const std::unique_ptr<Call>& call : calls_) call->stream->Finish();
    server_->stop();
    host_.forget();
  }
  /// A client with a connection of its own.
  std::unique_ptr<v1::ParameterServer::Stub> client() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return v1::ParameterServer::NewStub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  }
  /// Returns once the call is on its way to the server. Any thread.
  void begin(v1::ParameterServer::Stub& stub) {
    auto call = std::make_unique<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() + 3 * kPatience);
    call->stream = stub.Exchange(&call->context);
    const MutexLock lock(mutex_);
    calls_.push_back(std::move(call));
  }
  void wait_for_accepted(int count) {
    testing_support::eventually([&] { return host_.accepted >= count; }, kPatience);
    EXPECT_EQ(host_.accepted, count);
  }

  /// Our limits, but with times that suit a test.
  const PortLimits limits_{.handshake = Milliseconds(1000), .idle = Milliseconds(1000)};
  Host host_;
  std::unique_ptr<GrpcTransport> server_;
  std::string address_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(ConnectionLimits, OneConnectionHasSoManyCallsAtATimeAndOthersAreNotHeldUp) {
  const auto greedy = client();
  begin(*greedy);
  wait_for_accepted(1);  // from here on the client knows the limit
  const int most = limits_.calls_per_connection;
  for (int i = 1; i < most; ++i) begin(*greedy);
  wait_for_accepted(most);
  const auto modest = client();
  begin(*modest);
  wait_for_accepted(most + 1);

  std::thread one_more([&] { begin(*greedy); });  // which waits for its turn
  const auto is_taken = [&] { return host_.accepted > most + 1; };
  EXPECT_FALSE(testing_support::eventually(is_taken, Milliseconds(200)));
  // The place of one that ends is the next one's.
  server_->post([this] { host_.end_first(); });
  wait_for_accepted(most + 2);
  one_more.join();
}

TEST_F(ConnectionLimits, HeadersAreSmall) {
  const auto stub = client();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  context.AddMetadata("garrulous", std::string(20000, 'x'));
  const auto stream = stub->Exchange(&context);
  v1::ChunkMessage answer;
  EXPECT_FALSE(stream->Read(&answer));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("metadata"));
  EXPECT_EQ(host_.accepted, 0);
}

/// The client has no wish to leave for half an hour.
TEST_F(ConnectionLimits, AConnectionWithoutACallIsClosed) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel =
      grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
  const auto deadline = std::chrono::system_clock::now() + kPatience;
  ASSERT_TRUE(channel->WaitForConnected(deadline));
  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, deadline));
  EXPECT_EQ(channel->GetState(/*try_to_connect=*/false), GRPC_CHANNEL_IDLE);
}

TEST_F(ConnectionLimits, AConnectionWithACallStays) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel =
      grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
  const auto stub = v1::ParameterServer::NewStub(channel);
  begin(*stub);
  wait_for_accepted(1);
  EXPECT_FALSE(channel->WaitForStateChange(GRPC_CHANNEL_READY,
                                           std::chrono::system_clock::now() + 3 * limits_.idle));
}

TEST_F(ConnectionLimits, WhoConnectsAndSaysNothingIsCutOff) {
  const Descriptor silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1))));
  ::inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  ASSERT_EQ(::connect(silent.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
  ::setsockopt(silent.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char bytes[4096];
  ssize_t got = 0;
  do {
    got = ::recv(silent.get(), bytes, sizeof(bytes), 0);  // the server's own greeting, then the end
  } while (got > 0);
  EXPECT_EQ(got, 0) << "still open after " << kPatience.count() << " s";
}

}  // namespace
}  // namespace poseidon::connection_limits_test
