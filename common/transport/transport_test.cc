// One suite for all transports: gRPC and TLS on loopback, their in-memory twin, and shared memory
// on all of them.

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grpc/grpc_transport.h"
#include "common/transport/memory_transport.h"
#include "common/transport/paced_transport.h"
#include "common/transport/transport_test_support.h"
#include "gmock/gmock.h"
#include "tests/support/eventually.h"
#include "tests/support/test_security.h"

namespace poseidon::transport_test {
namespace {

using testing_support::eventually;
using testing_support::test_authority;
using testing_support::test_security;

using ::testing::HasSubstr;
using ::testing::Not;

/// What differs between the transports: how time passes.
class Network {
 public:
  virtual ~Network() = default;
  virtual Transport& client() = 0;
  virtual Transport& server() = 0;
  virtual std::string any_address() = 0;
  /// Runs until `done` holds (it is called under no lock and may take its own); false: never.
  virtual bool run_until(const std::function<bool()>& done) = 0;
  /// Runs a function on both loops' thread and returns after it.
  virtual void on(Transport& transport, const std::function<void()>& function) = 0;
  /// Memory for payloads.
  virtual std::shared_ptr<char> allocate(std::size_t bytes) {
    return {new char[bytes + 1], std::default_delete<char[]>()};
  }
};

class MemoryTwin final : public Network {
 public:
  Transport& client() override { return network_.endpoint("client"); }
  Transport& server() override { return network_.endpoint("server"); }
  std::string any_address() override { return "server:1"; }
  bool run_until(const std::function<bool()>& done) override {
    while (!done()) {
      if (!network_.step()) return false;
    }
    return true;
  }
  void on(Transport& /*transport*/, const std::function<void()>& function) override { function(); }

 private:
  MemoryNetwork network_{1, MemoryFaults{}};
};

class Grpc final : public Network {
 public:
  Grpc() = default;
  /// With TLS.
  Grpc(const std::shared_ptr<Security>& client, const std::shared_ptr<Security>& server)
      : client_({.security = client}), server_({.security = server}) {}
  Transport& client() override {
    if (!client_started_) client_.start();
    client_started_ = true;
    return client_;
  }
  Transport& server() override { return server_; }
  std::string any_address() override { return "127.0.0.1:0"; }
  bool run_until(const std::function<bool()>& done) override {
    start_server();
    return eventually(done, kPatience);
  }
  void on(Transport& transport, const std::function<void()>& function) override {
    start_server();
    auto ran = std::make_shared<std::promise<void>>();  // outlives set_value on the other thread
    transport.post([&function, ran] {
      function();
      ran->set_value();
    });
    ran->get_future().wait();
  }

 private:
  void start_server() {
    if (!std::exchange(server_started_, true)) server_.start();
  }
  GrpcTransport client_, server_;
  bool client_started_ = false, server_started_ = false;
};

/// Both ends of another network wrapped, each with an arena of its own.
class Shared final : public Network {
 public:
  explicit Shared(std::unique_ptr<Network> inner) : inner_(std::move(inner)) {}
  Transport& client() override {
    if (client_ == nullptr) {
      client_ = std::make_unique<PacedTransport>(&inner_->client(), client_arena_.get());
    }
    return *client_;
  }
  Transport& server() override { return server_; }
  std::string any_address() override { return inner_->any_address(); }
  bool run_until(const std::function<bool()>& done) override { return inner_->run_until(done); }
  void on(Transport& transport, const std::function<void()>& function) override {
    inner_->on(&transport == &server_ ? inner_->server() : inner_->client(), function);
  }
  std::shared_ptr<char> allocate(std::size_t bytes) override {
    // Of the client; what the server sends from it travels inline, which must work as well.
    return {static_cast<char*>(client_arena_->allocate(bytes)),
            [this](char* memory) { client_arena_->free(memory); }};
  }

 private:
  const std::unique_ptr<SharedArena> client_arena_ = *SharedArena::create(1 << 30);
  const std::unique_ptr<SharedArena> server_arena_ = *SharedArena::create(1 << 30);
  const std::unique_ptr<Network> inner_;
  PacedTransport server_{&inner_->server(), server_arena_.get()};
  std::unique_ptr<PacedTransport> client_;  ///< the inner one starts when asked for
};

enum class Which { kMemory, kGrpc, kSharedOverMemory, kSharedOverGrpc, kTls, kSharedOverTls };

std::string name_of(const ::testing::TestParamInfo<Which>& info) {
  const char* const names[] = {"Memory",         "Grpc", "SharedOverMemory",
                               "SharedOverGrpc", "Tls",  "SharedOverTls"};
  return names[static_cast<int>(info.param)];
}

bool over_grpc(Which which) { return which == Which::kGrpc || which == Which::kSharedOverGrpc; }
bool over_tls(Which which) { return which == Which::kTls || which == Which::kSharedOverTls; }
bool is_shared(Which which) {
  return which == Which::kSharedOverMemory || which == Which::kSharedOverGrpc ||
         which == Which::kSharedOverTls;
}

std::unique_ptr<Network> tls() {
  const auto folder = std::filesystem::path(::testing::TempDir()) /
                      ("poseidon_transport_test_" + std::to_string(::getpid()));
  const KeyPair authority = test_authority();
  auto network =
      std::make_unique<Grpc>(test_security(folder / "client", authority, PeerRole::kWorker),
                             test_security(folder / "server", authority, PeerRole::kServer));
  std::filesystem::remove_all(folder);
  return network;
}

class TransportTest : public ::testing::TestWithParam<Which> {
 protected:
  TransportTest() {
    if (over_tls(GetParam())) {
      network_ = tls();
    } else if (over_grpc(GetParam())) {
      network_ = std::make_unique<Grpc>();
    } else {
      network_ = std::make_unique<MemoryTwin>();
    }
    if (is_shared(GetParam())) network_ = std::make_unique<Shared>(std::move(network_));
    const auto address = network_->server().listen(network_->any_address(), &acceptor_);
    EXPECT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }
  ~TransportTest() override {
    on_client([this] { client_.stream_.reset(); });
    on_server([this] { acceptor_.recorder_.stream_.reset(); });
  }

  void connect() {
    on_client([this] { client_.stream_ = network_->client().connect(address_, &client_); });
  }
  void connect_and_greet() {
    connect();
    on_client([this] { client_.stream_->write(message("hello")); });
    ASSERT_TRUE(network_->run_until([this] { return server_side().count() == 1; }));
  }
  void on_client(const std::function<void()>& f) { network_->on(network_->client(), f); }
  void on_server(const std::function<void()>& f) { network_->on(network_->server(), f); }
  Recorder& server_side() { return acceptor_.recorder_; }

  OutgoingMessage message(const std::string& prefix, std::size_t payload_bytes = 0,
                          char fill = 'p') {
    std::shared_ptr<char> payload = network_->allocate(payload_bytes);
    std::memset(payload.get(), fill, payload_bytes);
    return {.prefix = prefix,
            .payload = {reinterpret_cast<const std::byte*>(payload.get()), payload_bytes},
            .payload_owner = payload};
  }

  OneStream acceptor_;
  Recorder client_;
  std::string address_;
  std::unique_ptr<Network> network_;  ///< dies first: nothing happens after it
};

TEST_P(TransportTest, MessagesArriveWholeAndInOrder) {
  const std::vector<std::size_t> sizes = {0, 1, 1000, (2 << 20) + 3, 5 << 20, 17};
  client_.on_written_ = [this, sizes, next = std::size_t{0}]() mutable {
    if (++next < sizes.size())
      client_.stream_->write(message("m", sizes[next], static_cast<char>('a' + next)));
  };
  connect();
  on_client([&] { client_.stream_->write(message("m", sizes[0])); });
  ASSERT_TRUE(network_->run_until([&] { return server_side().count() == sizes.size(); }));
  const auto messages = server_side().messages();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(messages[i].size(), 1 + sizes[i]);
    EXPECT_EQ(messages[i], "m" + std::string(sizes[i], static_cast<char>('a' + i)));
  }
}

TEST_P(TransportTest, TheServerAnswers) {
  connect_and_greet();
  on_server([&] { server_side().stream_->write(message("back", 100000)); });
  ASSERT_TRUE(network_->run_until([&] { return client_.count() == 1; }));
  EXPECT_EQ(client_.messages()[0], "back" + std::string(100000, 'p'));
}

TEST_P(TransportTest, ARefusalArrivesWithItsReasonAfterWhatWasWritten) {
  connect_and_greet();
  on_server([&] {
    server_side().stream_->write(message("last words"));
    server_side().stream_->close(absl::InvalidArgumentError("chunk 9: no such chunk"));
  });
  ASSERT_TRUE(network_->run_until([&] { return client_.closed().has_value(); }));
  EXPECT_THAT(client_.messages(), ::testing::ElementsAre("last words"));
  EXPECT_TRUE(absl::IsInvalidArgument(*client_.closed())) << *client_.closed();
  EXPECT_THAT(std::string(client_.closed()->message()), HasSubstr("chunk 9: no such chunk"));
  EXPECT_TRUE(network_->run_until([&] { return server_side().closed().has_value(); }));
}

TEST_P(TransportTest, WhatWasSaidBeforeAnEndArrivesAlsoWhenTheStreamIsLetGoOf) {
  connect_and_greet();
  on_server([&] {
    server_side().stream_->write(message("last words", 3000000));
    server_side().stream_->close(absl::InvalidArgumentError("chunk 9: no such chunk"));
    server_side().stream_.reset();
  });
  ASSERT_TRUE(network_->run_until([&] { return client_.closed().has_value(); }));
  ASSERT_EQ(client_.count(), 1U);
  EXPECT_EQ(client_.messages()[0], "last words" + std::string(3000000, 'p'));
  EXPECT_TRUE(absl::IsInvalidArgument(*client_.closed())) << *client_.closed();
  EXPECT_FALSE(server_side().closed()) << "no event for who let go of it";
}

TEST_P(TransportTest, AClientThatEndsCleanlyIsToldApartFromACut) {
  connect_and_greet();
  on_client([&] { client_.stream_->close(absl::OkStatus()); });
  ASSERT_TRUE(network_->run_until([&] { return server_side().closed().has_value(); }));
  EXPECT_TRUE(server_side().closed()->ok()) << *server_side().closed();
}

TEST_P(TransportTest, WhoHasNotHeardOfTheEndYetMayStillWrite) {
  connect_and_greet();
  const auto busy = std::make_shared<bool>(false);  // the loop's
  server_side().on_written_ = [busy] { *busy = false; };
  const auto write_once = [&] {
    if (server_side().closed() || std::exchange(*busy, true)) return;
    server_side().stream_->write(message("news"));
  };
  on_server(write_once);
  on_client([&] { client_.stream_->close(absl::OkStatus()); });
  ASSERT_TRUE(network_->run_until([&] {
    on_server(write_once);
    return server_side().closed().has_value();
  }));
}

TEST_P(TransportTest, DestroyingAStreamCutsTheOtherEnd) {
  connect_and_greet();
  on_client([&] { client_.stream_.reset(); });
  ASSERT_TRUE(network_->run_until([&] { return server_side().closed().has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*server_side().closed())) << *server_side().closed();
  EXPECT_FALSE(client_.closed()) << "no event for who destroyed it";
}

TEST_P(TransportTest, DestroyingTheServersEndCutsTheClient) {
  connect_and_greet();
  on_server([&] { server_side().stream_.reset(); });
  ASSERT_TRUE(network_->run_until([&] { return client_.closed().has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*client_.closed())) << *client_.closed();
}

TEST_P(TransportTest, NobodyThereIsUnavailable) {
  on_client([&] { client_.stream_ = network_->client().connect("127.0.0.1:1", &client_); });
  ASSERT_TRUE(network_->run_until([&] { return client_.closed().has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*client_.closed())) << *client_.closed();
}

TEST_P(TransportTest, PausedReadsHoldTheSenderBack) {
  connect();
  server_side().pause_ = true;
  constexpr int kMessages = 100;
  const auto sent = std::make_shared<std::atomic<int>>(1);
  client_.on_written_ = [this, sent] {
    if (*sent < kMessages) {
      ++*sent;
      client_.stream_->write(message("x", 1 << 20));
    }
  };
  on_client([&] { client_.stream_->write(message("x", 1 << 20)); });
  ASSERT_TRUE(network_->run_until([&] { return server_side().count() == 1; }));
  // Each resume lets through one message; the sender never runs ahead by more than the buffers.
  for (std::size_t taken = 1; taken < 20; ++taken) {
    ASSERT_TRUE(network_->run_until([&] { return server_side().count() == taken; }));
    EXPECT_LT(*sent, static_cast<int>(taken) + 40);
    on_server([&] { server_side().stream_->resume_reads(); });
  }
  server_side().pause_ = false;
  ASSERT_TRUE(network_->run_until([&] { return server_side().count() >= 20; }));
  on_server([&] { server_side().stream_->resume_reads(); });
  ASSERT_TRUE(network_->run_until([&] { return server_side().count() == kMessages; }));
}

TEST_P(TransportTest, TimersFireInOrder) {
  std::vector<int> fired;
  std::atomic<bool> done{false};
  on_client([&] {
    Transport& loop = network_->client();
    loop.post_after(Milliseconds(30), [&] {
      fired.push_back(3);
      done = true;
    });
    loop.post_after(Milliseconds(10), [&] { fired.push_back(1); });
    loop.post_after(Milliseconds(20), [&] { fired.push_back(2); });
    loop.post([&] { fired.push_back(0); });
  });
  ASSERT_TRUE(network_->run_until([&] { return done.load(); }));
  EXPECT_THAT(fired, ::testing::ElementsAre(0, 1, 2, 3));
}

TEST_P(TransportTest, ATakenAddressIsSaid) {
  std::unique_ptr<GrpcTransport> grpc;
  OneStream other;
  absl::Status status;
  if (over_grpc(GetParam()) || over_tls(GetParam())) {
    grpc = std::make_unique<GrpcTransport>();
    status = grpc->listen(address_, &other).status();
  } else {
    status = network_->client().listen(address_, &other).status();
  }
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address_));
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         ::testing::Values(Which::kMemory, Which::kGrpc, Which::kSharedOverMemory,
                                           Which::kSharedOverGrpc, Which::kTls,
                                           Which::kSharedOverTls),
                         name_of);

}  // namespace
}  // namespace poseidon::transport_test
