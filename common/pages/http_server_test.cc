#include "common/pages/http_server.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/scrape.h"
#include "tests/support/test_security.h"

namespace poseidon::http_server_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::answer_to;
using testing_support::connected_to;
using testing_support::silent_clients;

std::unique_ptr<HttpServer> echoing() {
  auto server =
      HttpServer::start({"127.0.0.1", 0}, Security::none(), [](const HttpRequest& request) {
        const std::string text = request.method + " " + request.path + " " + request.if_none_match +
                                 " " + request.accept_encoding;
        return HttpResponse{.status = request.path == "/known" ? 304 : 200,
                            .content_type = "text/plain",
                            .headers = {{"X-Ours", "yes"}},
                            .body = std::make_shared<const std::string>(text)};
      });
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(HttpServer, HandsOverMethodPathAndTag) {
  const auto server = echoing();
  const std::string answer = answer_to(
      server->address(),
      "GET /a%20b?q=1 HTTP/1.1\r\nHost: x\r\nIf-None-Match: \"t\"\r\nAccept-Encoding: br\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  for (const char* header :
       {"Content-Type: text/plain", "Content-Length: 15", "X-Ours: yes", "Connection: close"}) {
    EXPECT_THAT(answer, HasSubstr(std::string("\r\n") + header + "\r\n"));
  }
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nGET /a b \"t\" br"));
  EXPECT_THAT(
      answer_to(server->address(), "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"),
      HasSubstr("POST /x "));
}

TEST(HttpServer, HeadAndNotModifiedHaveNoBody) {
  const auto server = echoing();
  const std::string head = answer_to(server->address(), "HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 9\r\n"));
  EXPECT_EQ(head.substr(head.size() - 4), "\r\n\r\n");
  const std::string known = answer_to(server->address(), "GET /known HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(known, StartsWith("HTTP/1.1 304 Not Modified\r\n"));
  EXPECT_EQ(known.substr(known.size() - 4), "\r\n\r\n");
}

TEST(HttpServer, WhatIsNoRequestReachesNobody) {
  std::atomic<int> requests{0};
  const HttpLimits limits{.request_timeout_s = 1};
  const auto server = HttpServer::start(
      {"127.0.0.1", 0}, Security::none(),
      [&requests](const HttpRequest&) {
        ++requests;
        return HttpResponse{};
      },
      limits);
  ASSERT_TRUE(server.ok());
  for (const std::string& bytes :
       {std::string("nonsense\r\n\r\n"), std::string("GET\r\n\r\n"),
        std::string("\0\1\2\3\r\n\r\n", 8), std::string("GET x HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("GET / HTTP/2.0\r\nHost: x\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(limits.max_request_bytes, 'x') +
            "\r\n\r\n"}) {
    EXPECT_THAT(answer_to((*server)->address(), bytes), Not(HasSubstr("200 OK")));
  }
  EXPECT_EQ(requests, 0);
}

TEST(HttpServer, SilentClientsKeepNobodyWaitingAndAreCutOff) {
  const HttpLimits limits{.threads = 2, .request_timeout_s = 1};
  const auto server = HttpServer::start(
      {"127.0.0.1", 0}, Security::none(), [](const HttpRequest&) { return HttpResponse{}; },
      limits);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto clients = silent_clients((*server)->address(), limits);
  EXPECT_THAT(answer_to((*server)->address(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
              StartsWith("HTTP/1.1 200 OK\r\n"));
  for (const Descriptor& client : clients) {
    std::array<char, 4096> last_words{};
    ssize_t got = 0;
    while ((got = recv(client.get(), last_words.data(), last_words.size(), 0)) > 0) continue;
    EXPECT_EQ(got, 0) << "it still waits, or was reset";
  }
}

/// Whether the server has hung up before `patience` was over, on a client that sends one byte more
/// and takes one of what came, time and again.
bool is_cut_off(const Descriptor& client, std::chrono::seconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  char byte = 0;
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const bool is_sent = send(client.get(), "x", 1, MSG_NOSIGNAL) == 1;
    const ssize_t got = recv(client.get(), &byte, 1, MSG_DONTWAIT);
    const bool is_open = got > 0 || (got < 0 && errno == EAGAIN);
    if (!is_sent || !is_open) return true;
  }
  return false;
}

/// They are never silent for long.
TEST(HttpServer, DribblingClientsAreCutOff) {
  const HttpLimits limits{.connections = 8, .per_address = 4, .request_timeout_s = 1};
  const auto server = HttpServer::start(
      {"127.0.0.1", 0}, Security::none(), [](const HttpRequest&) { return HttpResponse{}; },
      limits);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  std::vector<Descriptor> clients;
  for (std::size_t i = 0; i < limits.per_address; ++i) {
    clients.push_back(connected_to((*server)->address()));
    (void)send(clients.back().get(), "GET /", 5, MSG_NOSIGNAL);
  }
  EXPECT_EQ(answer_to((*server)->address(), request), "") << "they have all of the connections";
  for (const Descriptor& client : clients) {
    EXPECT_TRUE(is_cut_off(client, std::chrono::seconds(10)));
  }
  EXPECT_THAT(answer_to((*server)->address(), request), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpServer, ATlsHandshakeThatDribblesIsCutOff) {
  constexpr const char* kHost = "127.0.0.2";  // 127.0.0.1 would be plain text
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("poseidon_http_" + std::to_string(getpid()));
  const auto security = testing_support::test_security(folder, testing_support::test_authority(),
                                                       PeerRole::kCoordinator);
  std::filesystem::remove_all(folder);
  const HttpLimits limits{.request_timeout_s = 1};
  const auto server = HttpServer::start(
      {kHost, 0}, security, [](const HttpRequest&) { return HttpResponse{}; }, limits);
  ASSERT_TRUE(server.ok()) << server.status();
  const Descriptor client = connected_to((*server)->address(), kHost);
  // The head of a handshake's record of 512 bytes.
  const std::array<char, 5> head{0x16, 0x03, 0x01, 0x02, 0x00};
  EXPECT_EQ(send(client.get(), head.data(), head.size(), MSG_NOSIGNAL), head.size());
  EXPECT_TRUE(is_cut_off(client, std::chrono::seconds(8)));
}

TEST(HttpServer, WhoTakesTheAnswerByteByByteIsCutOff) {
  const HttpLimits limits{.answer_timeout_s = 1};
  // More than the sockets of both sides hold.
  const auto body = std::make_shared<const std::string>(std::size_t{64} << 20, 'x');
  const auto server = HttpServer::start(
      {"127.0.0.1", 0}, Security::none(),
      [&body](const HttpRequest&) { return HttpResponse{.body = body}; }, limits);
  ASSERT_TRUE(server.ok()) << server.status();
  const Descriptor client = connected_to((*server)->address());
  const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  (void)send(client.get(), request.data(), request.size(), MSG_NOSIGNAL);
  const auto begin = std::chrono::steady_clock::now();
  while (body.use_count() == 1) {  // not yet answered
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  while (body.use_count() > 1) {  // the server lets go of it when it closes
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9))
        << "it still sends";
    char byte = 0;
    (void)recv(client.get(), &byte, 1, MSG_DONTWAIT);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// The time is the client's: what we need for the answer does not count.
TEST(HttpServer, AnAnswerMayTakeLongerToMakeThanARequestToCome) {
  const HttpLimits limits{.request_timeout_s = 1, .answer_timeout_s = 1};
  const auto server = HttpServer::start(
      {"127.0.0.1", 0}, Security::none(),
      [](const HttpRequest&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        return HttpResponse{};
      },
      limits);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(answer_to((*server)->address(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
              StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpServer, OneAddressDoesNotGetAllConnections) {
  const auto security = Security::none();
  const HttpLimits limits{.connections = 8, .per_address = 4};
  const auto server = HttpServer::start(
      {"127.0.0.1", 0}, security, [](const HttpRequest&) { return HttpResponse{}; }, limits);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<Descriptor> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(connected_to((*server)->address()));
  EXPECT_EQ(answer_to((*server)->address(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "");
  EXPECT_EQ(security->refused(PeerRefusal::kTooMany), 1);
}

TEST(HttpServer, ATakenPortIsNamed) {
  const auto server = echoing();
  const int port = std::stoi(server->address().substr(server->address().rfind(':') + 1));
  const auto second = HttpServer::start({"127.0.0.1", port}, Security::none(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server->address()));
}

TEST(HttpServer, EndsAtOnce) {
  auto server = echoing();
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

}  // namespace
}  // namespace poseidon::http_server_test
