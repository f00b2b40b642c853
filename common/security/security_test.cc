#include "common/security/security.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::security_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::int64_t days_from_now(int days) {
  return std::chrono::duration_cast<std::chrono::seconds>(
             (std::chrono::system_clock::now() + std::chrono::hours(24) * days).time_since_epoch())
      .count();
}

class SecurityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(::testing::TempDir()) / ("poseidon_security_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write_node(PeerRole::kWorker, days_from_now(100));
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    std::ofstream(folder_ / name) << text;
    ::chmod((folder_ / name).c_str(), mode);
  }
  void write_node(PeerRole role, std::int64_t until) {
    const auto node = issue_certificate(*authority_, role, "node", {days_from_now(-10), until});
    ASSERT_TRUE(node.ok()) << node.status();
    write("ca.crt", authority_->certificate_pem);
    write("tls.crt", node->certificate_pem);
    write("tls.key", node->key_pem);
  }
  std::string refusal(PeerRole self = PeerRole::kWorker) {
    const auto loaded =
        Security::load({.tls_dir = folder_.string(), .join_token_file = token_}, self);
    if (loaded.ok()) return "";
    EXPECT_TRUE(absl::IsInvalidArgument(loaded.status()));
    return std::string(loaded.status().message());
  }

  const absl::StatusOr<KeyPair> authority_ =
      make_authority("authority", {days_from_now(-10), days_from_now(1000)});
  fs::path folder_;
  std::string token_;
};

TEST_F(SecurityTest, GoodFilesAreTaken) {
  const auto loaded =
      Security::load({.tls_dir = folder_.string(), .join_token_file = ""}, PeerRole::kWorker);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE((*loaded)->has_tls());
  EXPECT_FALSE((*loaded)->has_token());
  EXPECT_NEAR(static_cast<double>((*loaded)->expires_unix_s().value_or(0)),
              static_cast<double>(days_from_now(100)), 60);
}

TEST_F(SecurityTest, WhatIsWrongWithAFileIsNamed) {
  fs::remove(folder_ / "tls.crt");
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("tls.crt"), HasSubstr("poseidon tls init")));
  write("tls.crt", "no certificate");
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("tls.crt"), HasSubstr("no certificate")));
  write_node(PeerRole::kWorker, days_from_now(-1));
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("tls.crt"), HasSubstr("expired"),
                                          HasSubstr("poseidon tls issue")));
  write_node(PeerRole::kServer, days_from_now(100));
  EXPECT_THAT(refusal(), HasSubstr("is that of a server, not of a worker"));
  write_node(PeerRole::kWorker, days_from_now(100));
  const auto other = make_authority("other", {days_from_now(-10), days_from_now(1000)});
  write("ca.crt", other->certificate_pem);
  EXPECT_THAT(refusal(), HasSubstr("another authority"));
  write_node(PeerRole::kWorker, days_from_now(100));
  write("tls.key", authority_->key_pem);
  EXPECT_THAT(refusal(),
              ::testing::AllOf(HasSubstr("tls.key"), HasSubstr("not the certificate's")));
}

TEST_F(SecurityTest, WhatEndsFirstCounts) {
  const auto soon = make_authority("authority", {days_from_now(-100), days_from_now(20)});
  ASSERT_TRUE(soon.ok()) << soon.status();
  const auto node =
      issue_certificate(*soon, PeerRole::kWorker, "node", {days_from_now(-10), days_from_now(100)});
  ASSERT_TRUE(node.ok()) << node.status();
  write("ca.crt", soon->certificate_pem);
  write("tls.crt", node->certificate_pem);
  write("tls.key", node->key_pem);
  const auto loaded =
      Security::load({.tls_dir = folder_.string(), .join_token_file = ""}, PeerRole::kWorker);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_NEAR(static_cast<double>((*loaded)->expires_unix_s().value_or(0)),
              static_cast<double>(days_from_now(20)), 60);

  // Both at once, as `tls issue` makes them near the authority's end: then another certificate of
  // it does not help.
  const auto over = make_authority("authority", {days_from_now(-100), days_from_now(-1)});
  const auto late =
      issue_certificate(*over, PeerRole::kWorker, "node", {days_from_now(-10), days_from_now(-1)});
  write("ca.crt", over->certificate_pem);
  write("tls.crt", late->certificate_pem);
  write("tls.key", late->key_pem);
  EXPECT_THAT(refusal(), HasSubstr("poseidon tls init"));
}

// While a cluster changes from one authority to another, both are in ca.crt.
TEST_F(SecurityTest, EachAuthorityInTheFileIsTrusted) {
  const auto other = make_authority("other", {days_from_now(-10), days_from_now(1000)});
  for (const std::string& both : {other->certificate_pem + authority_->certificate_pem,
                                  authority_->certificate_pem + other->certificate_pem}) {
    write("ca.crt", both);
    EXPECT_THAT(refusal(), IsEmpty());
  }
}

TEST_F(SecurityTest, WhoCallsAndAnswersNeedsACertificateForBoth) {
  const auto callers = issue_certificate(*authority_, PeerRole::kOperator, "node",
                                         {days_from_now(-10), days_from_now(100)});
  write("tls.crt", callers->certificate_pem);
  write("tls.key", callers->key_pem);
  EXPECT_THAT(refusal(), HasSubstr("not for this side of a connection"));
  EXPECT_THAT(refusal(PeerRole::kOperator), IsEmpty());
}

TEST_F(SecurityTest, RootsKeyMayBeAGroupsToo) {
  ::chmod((folder_ / "tls.key").c_str(), 0640);
  const std::string said = refusal();
  if (::geteuid() == 0) {
    EXPECT_THAT(said, IsEmpty());
  } else {
    EXPECT_THAT(said, HasSubstr("chmod 600")) << "the file is not root's";
  }
}

TEST_F(SecurityTest, AKeyThatOthersMayReadIsRefused) {
  ::chmod((folder_ / "tls.key").c_str(), 0644);
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("tls.key"), HasSubstr("chmod 6")));
  ::chmod((folder_ / "tls.key").c_str(), 0660);
  EXPECT_THAT(refusal(), HasSubstr("chmod 6"));
  ::chmod((folder_ / "tls.key").c_str(), 0600);
  EXPECT_THAT(refusal(), IsEmpty());
}

TEST_F(SecurityTest, TokensAreLongPrintableAndPrivate) {
  token_ = (folder_ / "token").string();
  EXPECT_THAT(refusal(), HasSubstr("--join-token-file"));
  write("token", "0123456789abcdef\n");
  EXPECT_THAT(refusal(), IsEmpty());
  write("token", "short\n");
  const std::string said = refusal();
  EXPECT_THAT(said, HasSubstr("16 to 1024"));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("short\n")));
  write("token", "0123456789abcdef 0123456789abcdef\n");
  EXPECT_THAT(refusal(), HasSubstr("printable"));
  write("token", "0123456789abcdef\n", 0644);
  EXPECT_THAT(refusal(), HasSubstr("chmod 6"));
}

TEST(Secrets, AreTheSameOnlyWhenTheyAre) {
  EXPECT_TRUE(same_secret("0123456789abcdef", "0123456789abcdef"));
  EXPECT_FALSE(same_secret("0123456789abcdef", "0123456789abcdeF"));
  EXPECT_FALSE(same_secret("0123456789abcdef", "0123456789abcde"));
  EXPECT_FALSE(same_secret("abab", "ab"));
  EXPECT_FALSE(same_secret("ab", "abab"));
  EXPECT_FALSE(same_secret("", "a"));
  EXPECT_FALSE(same_secret("a", ""));
}

TEST(Hints, SayWhatToLookAt) {
  EXPECT_THAT(connection_hint("last error: Socket closed", /*tls=*/false), HasSubstr("--tls-dir"));
  EXPECT_THAT(connection_hint("last error: Socket closed", /*tls=*/true),
              HasSubstr("its log says why"));
  EXPECT_THAT(connection_hint("Handshake failed", /*tls=*/true), HasSubstr("plain text"));
  EXPECT_THAT(
      connection_hint("Custom verification check failed with error: ... Socket closed", true),
      IsEmpty());
  EXPECT_THAT(connection_hint("Connection refused", true), IsEmpty());
  EXPECT_THAT(connection_hint("Connection refused", false), IsEmpty());
}

}  // namespace
}  // namespace poseidon::security_test
