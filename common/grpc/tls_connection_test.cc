// Streams in TLS on loopback, through a man in the middle who can read and change every byte, and
// strangers at the same port.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/grpc/grpc_transport.h"
#include "common/security/connection_door.h"
#include "common/wire/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/eventually.h"
#include "tests/support/messages.h"
#include "tests/support/test_security.h"

namespace poseidon::tls_connection_test {
namespace {

using testing_support::eventually;
using testing_support::message_of;
using testing_support::test_authority;
using testing_support::test_certificate;
using testing_support::test_security;
using testing_support::write_secret;

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience{20};

/// Says every message again.
class Echo final : public Acceptor {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    ++accepted_;
    ends_.emplace_back().stream_ = std::move(stream);
    return &ends_.back();
  }
  /// Once the loop has stopped.
  void forget() { ends_.clear(); }
  std::atomic<int> accepted_{0};

 private:
  struct End final : StreamHandler {
    ReadNext on_message(Bytes message) override {
      stream_->write(message_of("", joined(message)));
      return ReadNext::kContinue;
    }
    void on_written() override {}
    void on_closed(const absl::Status& /*status*/) override { stream_.reset(); }
    std::unique_ptr<Stream> stream_;
  };
  std::list<End> ends_;
};

/// Passes bytes on between callers and a port of this machine, and keeps them.
class Middle {
 public:
  enum class Way { kToServer, kToCaller };
  explicit Middle(int port) : port_(port), door_(*ConnectionDoor::open("127.0.0.1:0")) {
    door_->start(
        [this](int socket) {
          const std::lock_guard lock(mutex_);
          threads_.emplace_back([this, socket] { pass(Descriptor(socket)); });
        },
        [](const std::string& /*peer*/, ConnectionDoor::Refusal /*refusal*/) {});
  }
  ~Middle() {
    stopping_ = true;
    door_.reset();
    for (std::thread& thread : threads_) thread.join();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(door_->port()); }

  /// From now on one bit is another, of what passes this way on connections of streams.
  void change(Way way, std::size_t offset) {
    const std::lock_guard lock(mutex_);
    change_ = {way, offset};
  }
  /// From now on nothing passes.
  void hold() { holding_ = true; }
  /// All that has passed, both ways, of connections that began with this byte.
  std::string seen(char first) {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const auto& each : seen_) {
      if (!each[0].empty() && each[0][0] == first) all += each[0] + each[1];
    }
    return all;
  }

 private:
  void pass(Descriptor caller) {
    auto server = connect_plainly();
    if (!server.is_open()) return;
    std::array<std::string, 2>* seen = nullptr;
    {
      const std::lock_guard lock(mutex_);
      seen = &seen_.emplace_back();
    }
    const std::array<int, 2> ends{caller.get(), server.get()};
    std::vector<char> bytes(65536);
    while (!stopping_) {
      std::array<pollfd, 2> readable{pollfd{ends[0], POLLIN, 0}, pollfd{ends[1], POLLIN, 0}};
      if (::poll(readable.data(), 2, 20) <= 0) continue;  // looks whether it is to stop
      if (holding_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      for (std::size_t from = 0; from < 2; ++from) {
        if (readable[from].revents == 0) continue;
        const ssize_t count = ::recv(ends[from], bytes.data(), bytes.size(), 0);
        if (count < 0 && errno == EAGAIN) continue;
        if (count <= 0) return;
        keep(*seen, from, {bytes.data(), static_cast<std::size_t>(count)});
        for (ssize_t sent = 0; sent < count;) {
          const ssize_t now = ::send(ends[1 - from], bytes.data() + sent,
                                     static_cast<std::size_t>(count - sent), MSG_NOSIGNAL);
          if (now < 0 && errno != EAGAIN) return;
          sent += std::max<ssize_t>(0, now);
        }
      }
    }
  }
  void keep(std::array<std::string, 2>& seen, std::size_t from, std::span<char> bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t before = seen[from].size();
    seen[from].append(bytes.data(), bytes.size());
    const bool is_stream = !seen[0].empty() && seen[0][0] == kGreeting.front();
    if (!is_stream || !change_ || static_cast<std::size_t>(change_->first) != from) return;
    if (before <= change_->second && change_->second < before + bytes.size()) {
      bytes[change_->second - before] ^= 4;
    }
  }
  Descriptor connect_plainly() const {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(port_));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return {};
    return socket;
  }

  const int port_;
  std::atomic<bool> stopping_{false}, holding_{false};
  std::mutex mutex_;
  std::list<std::array<std::string, 2>> seen_;  ///< of each connection: from the caller, to it
  std::optional<std::pair<Way, std::size_t>> change_;
  std::vector<std::thread> threads_;
  std::unique_ptr<ConnectionDoor> door_;
};

/// Sends one message and waits for the result.
class Caller final : public StreamHandler {
 public:
  ReadNext on_message(Bytes message) override {
    const std::lock_guard lock(mutex_);
    heard_ = joined(message);
    changed_.notify_all();
    return ReadNext::kContinue;
  }
  void on_written() override {}
  void on_closed(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    closed_ = status;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return heard_ || closed_; });
  }
  std::unique_ptr<Stream> stream_;  ///< the loop's
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> heard_;
  std::optional<absl::Status> closed_;
};

class TlsConnections : public ::testing::Test {
 protected:
  static constexpr const char* kToken = "a-token-that-nobody-else-may-know";

  void SetUp() override {
    take_grpc_log();
    folder_ = fs::path(::testing::TempDir()) /
              ("poseidon_tls_connection_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write_secret(folder_ / "token", kToken);
    server_security_ = security("server", PeerRole::kServer);
    worker_security_ = security("worker", PeerRole::kWorker);
    const auto transport = [](const std::shared_ptr<Security>& security) {
      return std::make_unique<GrpcTransport>(
          GrpcTransportOptions{.keepalive_interval = Milliseconds(1000),
                               .keepalive_timeout = Milliseconds(1000),
                               .security = security});
    };
    server_ = transport(server_security_);
    worker_ = transport(worker_security_);
    const auto address = server_->listen("127.0.0.1:0", &echo_);
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
    server_->start();
    worker_->start();
    middle_ = std::make_unique<Middle>(std::stoi(address_.substr(address_.rfind(':') + 1)));
  }
  void TearDown() override {
    worker_->stop();
    server_->stop();
    caller_.stream_.reset();
    echo_.forget();
    middle_.reset();
    fs::remove_all(folder_);
  }
  std::shared_ptr<Security> security(const std::string& name, PeerRole role) {
    test_security(folder_ / name, authority_, role);
    return *Security::load(
        {.tls_dir = (folder_ / name).string(), .join_token_file = (folder_ / "token").string()},
        role);
  }
  bool say_through_the_middle(const std::string& text) {
    worker_->post([this, text] {
      caller_.stream_ = worker_->connect(middle_->address(), &caller_);
      caller_.stream_->write(message_of("", text));
    });
    return caller_.wait();
  }

  /// The channel of a stock client with a worker's certificate.
  std::shared_ptr<grpc::Channel> stock(grpc::ChannelArguments arguments) const {
    const KeyPair own = test_certificate(authority_, PeerRole::kWorker);
    arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, "server.poseidon.internal");
    return grpc::CreateCustomChannel(
        address_,
        grpc::SslCredentials({.pem_root_certs = authority_.certificate_pem,
                              .pem_private_key = own.key_pem,
                              .pem_cert_chain = own.certificate_pem}),
        arguments);
  }

  const KeyPair authority_ = test_authority();
  fs::path folder_;
  std::shared_ptr<Security> server_security_, worker_security_;
  Echo echo_;
  Caller caller_;
  std::unique_ptr<GrpcTransport> server_, worker_;
  std::unique_ptr<Middle> middle_;
  std::string address_;
};

std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < 200000; ++i) text += "gradient " + std::to_string(i) + ", ";
  return text;
}

TEST_F(TlsConnections, WhoIsInTheMiddleReadsNeitherTextNorToken) {
  ASSERT_TRUE(say_through_the_middle(long_text()));
  EXPECT_EQ(caller_.heard_, long_text());
  const std::string seen = middle_->seen(kGreeting.front());
  EXPECT_GT(seen.size(), 2 * long_text().size());
  EXPECT_EQ(seen.find("gradient"), std::string::npos);
  EXPECT_EQ(seen.find(kToken), std::string::npos);
  EXPECT_EQ(middle_->seen('\x16'), "") << "gRPC carries none of it";
  EXPECT_EQ(server_security_->refused(PeerRefusal::kBrokenMessage), 0U);
}

TEST_F(TlsConnections, AChangedBitEndsTheStreamAndIsCountedByWhoGetsIt) {
  middle_->change(Middle::Way::kToCaller, 30000);
  ASSERT_TRUE(say_through_the_middle(long_text()));
  EXPECT_FALSE(caller_.heard_);
  ASSERT_TRUE(caller_.closed_);
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_THAT(std::string(caller_.closed_->message()),
              HasSubstr("somebody between the two changes what passes"));
  EXPECT_EQ(worker_security_->refused(PeerRefusal::kBrokenMessage), 1U);
  EXPECT_EQ(server_security_->refused(PeerRefusal::kBrokenMessage), 0U);
}

TEST_F(TlsConnections, AChangedBitOnTheWayToTheServerIsCountedThere) {
  middle_->change(Middle::Way::kToServer, 30000);
  ASSERT_TRUE(say_through_the_middle(long_text()));
  EXPECT_FALSE(caller_.heard_);
  ASSERT_TRUE(caller_.closed_);
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  // OpenSSL tells the caller before it tells us.
  EXPECT_TRUE(eventually(
      [this] { return server_security_->refused(PeerRefusal::kBrokenMessage) == 1; }, kPatience));
}

TEST_F(TlsConnections, AChangedGreetingIsRefusedAtTheDoor) {
  const std::uint64_t before = server_security_->refused(PeerRefusal::kHandshake);
  middle_->change(Middle::Way::kToServer, 3);
  ASSERT_TRUE(say_through_the_middle("hello"));
  ASSERT_TRUE(caller_.closed_);
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_EQ(server_security_->refused(PeerRefusal::kHandshake), before + 1);
  EXPECT_EQ(echo_.accepted_, 0);
}

TEST_F(TlsConnections, AChangedBitInTheHandshakeEndsIt) {
  for (const auto way : {Middle::Way::kToServer, Middle::Way::kToCaller}) {
    for (const std::size_t place : {std::size_t{60}, std::size_t{300}}) {
      {
        const std::lock_guard lock(caller_.mutex_);
        caller_.closed_.reset();
      }
      middle_->change(way, place);
      ASSERT_TRUE(say_through_the_middle("hello"));
      EXPECT_FALSE(caller_.heard_);
      ASSERT_TRUE(caller_.closed_);
      EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
    }
  }
  EXPECT_EQ(echo_.accepted_, 0);
}

TEST_F(TlsConnections, ASilentConnectionIsCutByItsKeepalive) {
  ASSERT_TRUE(say_through_the_middle("hello"));
  ASSERT_TRUE(caller_.heard_);
  {
    const std::lock_guard lock(caller_.mutex_);
    caller_.heard_.reset();
  }
  middle_->hold();
  ASSERT_TRUE(caller_.wait());
  ASSERT_TRUE(caller_.closed_);
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
}

TEST_F(TlsConnections, IPv6Works) {
  GrpcTransport server(GrpcTransportOptions{.security = server_security_});
  Echo echo;
  const auto address = server.listen("[::1]:0", &echo);
  if (!address.ok()) GTEST_SKIP() << "no IPv6 here: " << address.status();
  server.start();
  worker_->post([this, address] {
    caller_.stream_ = worker_->connect(*address, &caller_);
    caller_.stream_->write(message_of("", "hello"));
  });
  EXPECT_TRUE(caller_.wait());
  EXPECT_EQ(caller_.heard_, "hello") << caller_.closed_.value_or(absl::OkStatus());
  worker_->stop();
  server.stop();
  echo.forget();
}

TEST_F(TlsConnections, StopsWhileStreamsComeAbout) {
  for (int round = 0; round < 20; ++round) {
    GrpcTransport client(GrpcTransportOptions{.security = worker_security_});
    std::list<Caller> callers(4);
    client.start();
    client.post([&] {
      for (Caller& caller : callers) {
        caller.stream_ = client.connect(address_, &caller);
        caller.stream_->write(message_of("", "hello"));
      }
    });
    if (round % 4 != 0) {
      // Some of them are through by then; which, is for the scheduler.
      std::unique_lock lock(callers.front().mutex_);
      callers.front().changed_.wait_for(lock, std::chrono::milliseconds(2 * round));
    }
    client.stop();
    for (Caller& caller : callers) caller.stream_.reset();
  }
  ASSERT_TRUE(say_through_the_middle("hello")) << "the server is well";
  EXPECT_EQ(caller_.heard_, "hello");
}

/// One call of a stock client.
grpc::Status call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& message, std::string* answer = nullptr,
                  const char* token = nullptr) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  if (token != nullptr) context.AddMetadata("poseidon-join-token", token);
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, {}, &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  std::vector<grpc::Slice> slices;
  if (answer != nullptr && response.Dump(&slices).ok()) {
    for (const grpc::Slice& each : slices) {
      answer->append(reinterpret_cast<const char*>(each.begin()), each.size());
    }
  }
  return status;
}

TEST_F(TlsConnections, NothingIsUnpacked) {
  // 16 MiB of zeros in some KB: a message that is decompressed before it is checked has no size
  // limit.
  grpc::ChannelArguments arguments;
  arguments.SetCompressionAlgorithm(GRPC_COMPRESS_GZIP);
  arguments.SetMaxReceiveMessageSize(-1);
  std::string answer;
  const grpc::Status status = call(stock(arguments), std::string(kExchangeMethod),
                                   std::string(16 << 20, '\0'), &answer, kToken);
  EXPECT_EQ(echo_.accepted_, 1) << status.error_message();
  EXPECT_LT(answer.size(), 100000U) << status.error_message();
}

TEST_F(TlsConnections, NamesAreLookedUp) {
  worker_->post([this] {
    caller_.stream_ =
        worker_->connect("localhost" + address_.substr(address_.rfind(':')), &caller_);
    caller_.stream_->write(message_of("", "hello"));
  });
  ASSERT_TRUE(caller_.wait());
  EXPECT_EQ(caller_.heard_, "hello") << caller_.closed_.value_or(absl::OkStatus());
}

TEST_F(TlsConnections, AFloodOfStrangersHoldsUpNobody) {
  const std::uint64_t before = server_security_->refused(PeerRefusal::kHandshake);
  constexpr int kStrangers = 300;
  const int port = std::stoi(address_.substr(address_.rfind(':') + 1));
  std::string text(kGreeting.data(), kGreeting.size());
  std::vector<Descriptor> strangers;
  for (int i = 0; i < kStrangers; ++i) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    // Half of them say nothing more, and stay.
    const std::string says = i % 2 == 0 ? text : text + std::string(500, static_cast<char>(i));
    ASSERT_EQ(::send(socket.get(), says.data(), says.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(says.size()));
    strangers.push_back(std::move(socket));
  }
  ASSERT_TRUE(say_through_the_middle("hello"));
  EXPECT_EQ(caller_.heard_, "hello");
  EXPECT_TRUE(eventually(
      [&] { return server_security_->refused(PeerRefusal::kHandshake) >= before + kStrangers / 2; },
      kPatience));
  EXPECT_EQ(echo_.accepted_, 1);
}

}  // namespace
}  // namespace poseidon::tls_connection_test
