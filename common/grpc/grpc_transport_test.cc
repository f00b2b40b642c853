// What gRPC's transport alone has: threads, ports, processes that end, sockets.

#include "common/grpc/grpc_transport.h"

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/transport_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/eventually.h"

namespace poseidon::grpc_transport_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::eventually;

TEST(GrpcTransport, PostsFromManyThreadsAllRun) {
  GrpcTransport transport;
  transport.start();
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) transport.post([&] { ++ran; });
    });
  }
  for (auto& thread : threads) thread.join();
  transport.stop();
  EXPECT_EQ(ran, 8000);
}

TEST(GrpcTransport, OnePortServesSeveralMethods) {
  OneStream first, second;
  Recorder to_first, to_second, to_nobody;
  GrpcTransport server, caller;
  const auto address = server.add_method("/test.First/Exchange").listen("127.0.0.1:0", &first);
  ASSERT_TRUE(address.ok()) << address.status();
  Transport& other = server.add_method("/test.Second/Exchange");
  EXPECT_EQ(other.listen("127.0.0.1:1", &second).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(other.listen(*address, &second).value_or(""), *address);
  server.start();
  caller.start();
  const auto call = [&](std::string_view method, Recorder& recorder, const char* word) {
    Transport& transport = caller.add_method(method);
    caller.post([&transport, &recorder, word, to = *address] {
      recorder.stream_ = transport.connect(to, &recorder);
      recorder.stream_->write({.prefix = word, .payload = {}, .payload_owner = nullptr});
    });
  };
  call("/test.First/Exchange", to_first, "one");
  call("/test.Second/Exchange", to_second, "two");
  call("/test.Third/Exchange", to_nobody, "three");
  eventually([&] {
    return first.recorder_.count() > 0 && second.recorder_.count() > 0 && to_nobody.closed();
  });
  EXPECT_THAT(first.recorder_.messages(), ::testing::ElementsAre("one"));
  EXPECT_THAT(second.recorder_.messages(), ::testing::ElementsAre("two"));
  ASSERT_TRUE(to_nobody.closed());
  EXPECT_EQ(to_nobody.closed()->code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(to_nobody.closed()->message()), HasSubstr("/test.Second/Exchange"));
  caller.stop();
  server.stop();
  for (Recorder* recorder :
       {&to_first, &to_second, &to_nobody, &first.recorder_, &second.recorder_}) {
    recorder->stream_.reset();
  }
}

TEST(GrpcTransport, AStreamThatHasWorkedIsNotCutForWantOfTls) {
  OneStream acceptor;
  Recorder client;
  GrpcTransport server, caller;
  const auto address = server.listen("127.0.0.1:0", &acceptor);
  ASSERT_TRUE(address.ok()) << address.status();
  server.start();
  caller.start();
  caller.post([&] {
    client.stream_ = caller.connect(*address, &client);
    client.stream_->write({.prefix = "one", .payload = {}, .payload_owner = nullptr});
  });
  eventually([&] { return acceptor.recorder_.count() > 0; });
  server.post([&] {
    acceptor.recorder_.stream_->write({.prefix = "two", .payload = {}, .payload_owner = nullptr});
  });
  eventually([&] { return client.count() > 0; });
  server.stop();
  eventually([&] { return client.closed().has_value(); });
  ASSERT_TRUE(client.closed());
  EXPECT_EQ(client.closed()->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.closed()->message()), Not(HasSubstr("TLS")));
  caller.stop();
  client.stream_.reset();
  acceptor.recorder_.stream_.reset();
}

TEST(GrpcTransport, StreamsGivenUpWhileTheyConnectLeaveNoSocket) {
  struct Taker final : public Acceptor {
    StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
      streams.push_back(std::move(stream));
      return &handler;
    }
    std::vector<std::unique_ptr<Stream>> streams;
    Recorder handler;
  } acceptor;
  Recorder client;
  GrpcTransport server, caller;
  const auto address = server.listen("127.0.0.1:0", &acceptor);
  ASSERT_TRUE(address.ok()) << address.status();
  server.start();
  caller.start();
  const auto on = [](GrpcTransport& transport, const std::function<void()>& function) {
    std::promise<void> ran;
    transport.post([&] {
      function();
      ran.set_value();
    });
    ran.get_future().wait();
  };
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  const auto before = descriptors();
  for (int i = 0; i < 60; ++i) {
    on(caller, [&] { client.stream_ = caller.connect(*address, &client); });
    std::this_thread::sleep_for(std::chrono::microseconds(50 * i));  // in every state of connecting
    on(caller, [&] { client.stream_.reset(); });
  }
  EXPECT_TRUE(eventually(
      [&] {
        on(server, [&] { acceptor.streams.clear(); });
        return descriptors() <= before;
      },
      kPatience))
      << descriptors() << " are open, where there were " << before;
  caller.stop();
  server.stop();
}

TEST(GrpcTransport, StopsWithStreamsOpenAndBusy) {
  for (int round = 0; round < 5; ++round) {
    OneStream acceptor;
    Recorder client;
    GrpcTransport server, caller;
    const auto address = server.listen("127.0.0.1:0", &acceptor);
    ASSERT_TRUE(address.ok());
    server.start();
    caller.start();
    auto connected = std::make_shared<std::promise<void>>();
    caller.post([&, connected] {
      client.stream_ = caller.connect(*address, &client);
      auto payload = std::make_shared<std::string>(1 << 20, 'x');
      client.stream_->write(
          {.prefix = "p",
           .payload = {reinterpret_cast<const std::byte*>(payload->data()), payload->size()},
           .payload_owner = payload});
      connected->set_value();
    });
    connected->get_future().wait();
    if (round % 2 == 0) {
      server.stop();
      caller.stop();
    } else {
      caller.stop();
      server.stop();
    }
    client.stream_.reset();
    acceptor.recorder_.stream_.reset();
  }
}

}  // namespace
}  // namespace poseidon::grpc_transport_test
