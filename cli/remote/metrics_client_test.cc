#include "cli/remote/metrics_client.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/pages/http_server.h"
#include "common/security/certificates.h"
#include "common/security/security.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/scrape.h"

namespace poseidon::metrics_client_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr Milliseconds kPatience{5000};
constexpr std::int64_t kDayS = 86400;

class Fetch : public ::testing::Test {
 protected:
  Fetch()
      : folder_(fs::path(::testing::TempDir()) /
                absl::StrCat("poseidon_metrics_client_test_", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Fetch() override { fs::remove_all(folder_); }

  static std::unique_ptr<HttpServer> serve(
      const std::string& text, const std::shared_ptr<Security>& security = Security::none(),
      const std::string& host = "127.0.0.1", int status = 200) {
    auto server = HttpServer::start({host, 0}, security, [=](const HttpRequest& request) {
      return request.path == "/metrics" ? text_response(status, text)
                                        : text_response(404, "not here");
    });
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }

  /// By address; each is heard of once.
  std::map<std::string, absl::StatusOr<std::string>> fetch(
      const std::vector<std::string>& addresses, const std::string& tls_dir = "",
      Milliseconds timeout = kPatience) {
    std::map<std::string, absl::StatusOr<std::string>> pages;
    fetch_metrics(addresses, {.tls_dir = tls_dir, .join_token_file = ""}, timeout,
                  [&](std::size_t index, absl::StatusOr<std::string> page) {
                    EXPECT_TRUE(pages.emplace(addresses[index], std::move(page)).second);
                  });
    EXPECT_EQ(pages.size(), addresses.size());
    return pages;
  }

  static std::int64_t now_s() {
    return std::chrono::duration_cast<std::chrono::seconds>(SystemClock().unix_time()).count();
  }
  static KeyPair authority() {
    return *make_authority("authority", {now_s() - kDayS, now_s() + 100 * kDayS});
  }
  std::string identity(const KeyPair& of, PeerRole role) {
    const fs::path folder = folder_ / absl::StrCat(++identities_);
    fs::create_directories(folder);
    const KeyPair made =
        *issue_certificate(of, role, "node", {now_s() - kDayS, now_s() + 100 * kDayS});
    for (const auto& [name, text] :
         {std::pair("ca.crt", of.certificate_pem), std::pair("tls.crt", made.certificate_pem),
          std::pair("tls.key", made.key_pem)}) {
      std::ofstream(folder / name) << text;
      ::chmod((folder / name).c_str(), 0600);
    }
    return folder.string();
  }
  static std::shared_ptr<Security> loaded(const std::string& tls_dir, PeerRole role) {
    auto security = Security::load({.tls_dir = tls_dir, .join_token_file = ""}, role);
    EXPECT_TRUE(security.ok()) << security.status();
    return *security;
  }

 private:
  const fs::path folder_;
  int identities_ = 0;
};

TEST_F(Fetch, AllThatAnswerAndWhyTheOthersDoNot) {
  std::vector<std::unique_ptr<HttpServer>> servers;
  std::vector<std::string> addresses;
  constexpr int kServers = 40;  // more than are asked at a time
  for (int i = 0; i < kServers; ++i) {
    servers.push_back(serve(absl::StrCat("up ", i, "\n")));
    addresses.push_back(servers.back()->address());
  }
  const auto broken = serve("out of\x1b order\n", Security::none(), "127.0.0.1", 500);
  addresses.push_back(broken->address());
  std::string nobody;
  {
    const auto gone = serve("");
    nobody = gone->address();
  }
  addresses.push_back(nobody);
  const auto pages = fetch(addresses);
  for (int i = 0; i < kServers; ++i) {
    ASSERT_TRUE(pages.at(addresses[static_cast<std::size_t>(i)]).ok());
    EXPECT_EQ(*pages.at(addresses[static_cast<std::size_t>(i)]), absl::StrCat("up ", i, "\n"));
  }
  EXPECT_EQ(pages.at(broken->address()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(pages.at(broken->address()).status().message(), HasSubstr("it answers 500: out of"));
  EXPECT_EQ(pages.at(nobody).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(pages.at(nobody).status().message(), HasSubstr("connect"));
  EXPECT_TRUE(fetch({}).empty());
}

TEST_F(Fetch, WhoDoesNotAnswerInTimeIsLeftOut) {
  // Connections to it wait in its queue.
  const Descriptor silent(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(silent.get(), 8), 0);
  ASSERT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string waits = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const auto server = serve("up 1\n");
  const auto pages = fetch({waits, server->address()}, "", Milliseconds(300));
  EXPECT_EQ(pages.at(waits).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(pages.at(server->address()).ok());
}

TEST_F(Fetch, APageThatIsTooLargeIsGivenUp) {
  const auto server = serve(std::string(kMaxMetricsPageBytes + 1, '#'));
  EXPECT_EQ(
      fetch({server->address()}, "", Milliseconds(60000)).at(server->address()).status().code(),
      absl::StatusCode::kResourceExhausted);
}

TEST_F(Fetch, WithTlsWhereOthersThanThisMachineAsk) {
  const KeyPair ours = authority();
  const auto security = loaded(identity(ours, PeerRole::kServer), PeerRole::kServer);
  const auto server = serve("up 1\n", security, "127.0.0.2");
  const std::string address = server->address();
  EXPECT_THAT(server->url(), HasSubstr("https://"));
  const auto page_for = [&](const std::string& tls_dir) {
    return fetch({address}, tls_dir).at(address);
  };
  const auto page = page_for(identity(ours, PeerRole::kOperator));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(*page, "up 1\n");
  const auto of_worker = page_for(identity(ours, PeerRole::kWorker));
  EXPECT_EQ(of_worker.status().code(), absl::StatusCode::kPermissionDenied) << of_worker.status();
  // Neither does another authority's word count for us, nor do we take one in clear.
  EXPECT_EQ(page_for(identity(authority(), PeerRole::kOperator)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(page_for("").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(Fetch, OnThisMachinesLoopbackInClearEvenWithACertificate) {
  const KeyPair ours = authority();
  const auto security = loaded(identity(ours, PeerRole::kServer), PeerRole::kServer);
  const auto server = serve("up 1\n", security);
  const auto page =
      fetch({server->address()}, identity(ours, PeerRole::kOperator)).at(server->address());
  ASSERT_TRUE(page.ok()) << page.status();
}

}  // namespace
}  // namespace poseidon::metrics_client_test
