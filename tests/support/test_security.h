#pragma once

// Certificates as `poseidon tls` makes them, for tests.

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/security/certificates.h"
#include "common/security/security.h"
#include "gtest/gtest.h"

namespace poseidon::testing_support {

inline constexpr int kTestDayS = 86400;

inline std::int64_t test_now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}
inline KeyPair test_authority() {
  return *make_authority("authority",
                         {test_now_s() - 30 * kTestDayS, test_now_s() + 1000 * kTestDayS});
}
inline KeyPair test_certificate(const KeyPair& of, PeerRole role,
                                std::int64_t until = test_now_s() + 100 * kTestDayS) {
  return *issue_certificate(of, role, "node", {test_now_s() - 20 * kTestDayS, until});
}
/// A file as private as a key is.
inline void write_secret(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), 0600);
}
/// As a daemon has it, from a folder that is made for it.
inline std::shared_ptr<Security> test_security(const std::filesystem::path& folder,
                                               const KeyPair& of, PeerRole role) {
  std::filesystem::create_directories(folder);
  const KeyPair made = test_certificate(of, role);
  write_secret(folder / "ca.crt", of.certificate_pem);
  write_secret(folder / "tls.crt", made.certificate_pem);
  write_secret(folder / "tls.key", made.key_pem);
  auto security = Security::load({.tls_dir = folder.string(), .join_token_file = ""}, role);
  EXPECT_TRUE(security.ok()) << security.status();
  return *security;
}

}  // namespace poseidon::testing_support
