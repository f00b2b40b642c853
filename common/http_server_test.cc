#include "common/http_server.h"

#include <array>
#include <atomic>
#include <chrono>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/scrape.h"

namespace poseidon {
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
}  // namespace poseidon
