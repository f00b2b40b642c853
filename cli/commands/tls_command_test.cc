#include "cli/commands/tls_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "common/security/security.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::tls_command_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TlsCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("poseidon_tls_command_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) all[entry.path().string()] = read(entry.path());
    }
    return all;
  }
  absl::Status issue(const std::string& role, const std::string& name) const {
    return run_tls_issue({.role = role, .to = folder_.string(), .name = name});
  }
  fs::path folder_;
};

TEST_F(TlsCommand, InitMakesAFolderPerRoleThatLoads) {
  ASSERT_TRUE(run_tls_init({.to = folder_.string()}).ok());
  for (const PeerRole role : kAllPeerRoles) {
    const fs::path of_role = folder_ / std::string(peer_role_name(role));
    const auto loaded = Security::load({.tls_dir = of_role.string(), .join_token_file = ""}, role);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    struct stat key {};
    ASSERT_EQ(::stat((of_role / "tls.key").c_str(), &key), 0);
    EXPECT_EQ(key.st_mode & 0777, 0600U);
    EXPECT_FALSE(fs::exists(of_role / "ca.key")) << "the authority's key stays where it is";
  }
  struct stat key {};
  ASSERT_EQ(::stat((folder_ / "ca" / "ca.key").c_str(), &key), 0);
  EXPECT_EQ(key.st_mode & 0777, 0600U);
}

TEST_F(TlsCommand, AuthoritiesHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const char* to : {"one", "other"}) {
    ASSERT_TRUE(run_tls_init({.to = (folder_ / to).string()}).ok());
    const auto made = read_certificate(read(folder_ / to / "ca" / "ca.crt"));
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_THAT(made->subject, HasSubstr("Poseidon private authority "));
    names.insert(made->subject);
  }
  EXPECT_EQ(names.size(), 2U);
}

TEST_F(TlsCommand, InitSaysForWhomEachFolderIs) {
  testing::internal::CaptureStdout();
  ASSERT_TRUE(run_tls_init({.to = folder_.string()}).ok());
  std::fflush(stdout);
  const std::string said = testing::internal::GetCapturedStdout();
  for (const char* bearer : {"poseidon-coordinator", "poseidon-server", "poseidon-worker",
                             "the command poseidon", "for Prometheus"}) {
    EXPECT_THAT(said, HasSubstr(bearer));
  }
  EXPECT_THAT(said, Not(HasSubstr("poseidon-monitor"))) << "there is no such program";
}

TEST_F(TlsCommand, NoCertificateOutlivesItsAuthority) {
  fs::create_directories(folder_ / "ca");
  const auto authority_until = [&](int days) {
    const std::int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
    const auto made = make_authority("old", {now - 100 * 86400, now + days * 86400});
    ASSERT_TRUE(made.ok()) << made.status();
    std::ofstream(folder_ / "ca" / "ca.crt") << made->certificate_pem;
    std::ofstream(folder_ / "ca" / "ca.key") << made->key_pem;
  };
  authority_until(20);
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(issue("worker", "node").ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("its authority expires"));
  const auto authority = read_certificate(read(folder_ / "ca" / "ca.crt"));
  const auto node = read_certificate(read(folder_ / "node" / "tls.crt"));
  ASSERT_TRUE(authority.ok() && node.ok());
  EXPECT_EQ(node->validity.until_unix_s, authority->validity.until_unix_s);

  authority_until(-1);
  EXPECT_THAT(std::string(issue("worker", "late").message()),
              ::testing::AllOf(HasSubstr("has expired"), HasSubstr("poseidon tls init")));
  EXPECT_FALSE(fs::exists(folder_ / "late"));
}

TEST_F(TlsCommand, NothingIsOverwritten) {
  ASSERT_TRUE(run_tls_init({.to = folder_.string()}).ok());
  const auto before = files();
  fs::remove_all(folder_ / "worker");
  ASSERT_TRUE(run_tls_init({.to = folder_.string()}).ok());
  auto after = files();
  EXPECT_EQ(after.size(), before.size());
  for (const auto& [path, text] : before) {
    const bool made_anew = path.find("/worker/tls.") != std::string::npos;
    EXPECT_EQ(after[path] == text, !made_anew) << path;
  }
  const absl::Status again = issue("worker", "");
  EXPECT_THAT(std::string(again.message()), HasSubstr("already exists and was not changed"));
  EXPECT_EQ(files(), after);
}

TEST_F(TlsCommand, IssueAddsOneOfTheSameAuthority) {
  ASSERT_TRUE(run_tls_init({.to = folder_.string()}).ok());
  ASSERT_TRUE(issue("worker", "node7").ok());
  EXPECT_EQ(read(folder_ / "node7" / "ca.crt"), read(folder_ / "worker" / "ca.crt"));
  EXPECT_NE(read(folder_ / "node7" / "tls.key"), read(folder_ / "worker" / "tls.key"));
  const auto facts = read_certificate(read(folder_ / "node7" / "tls.crt"));
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->subject, "CN = node7");
  EXPECT_TRUE(Security::load({.tls_dir = (folder_ / "node7").string(), .join_token_file = ""},
                             PeerRole::kWorker)
                  .ok());
}

TEST_F(TlsCommand, WrongCallsAreNamed) {
  EXPECT_THAT(std::string(issue("worker", "").message()), HasSubstr("poseidon tls init"));
  ASSERT_TRUE(run_tls_init({.to = folder_.string()}).ok());
  const std::string no_boss(issue("boss", "").message());
  EXPECT_THAT(no_boss, HasSubstr("no role \"boss\""));
  for (const PeerRole role : kAllPeerRoles) {
    EXPECT_THAT(no_boss, HasSubstr(std::string(peer_role_name(role))));
  }
  for (const char* name : {"ca", "../worker", "a/b", ".hidden"}) {
    EXPECT_THAT(std::string(issue("worker", name).message()), HasSubstr("--name")) << name;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(run_tls_init({.to = "/dev/null/tls"})));
}

}  // namespace
}  // namespace poseidon::tls_command_test
