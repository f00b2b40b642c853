#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace poseidon::testing_support {

/// For a test's main, before GoogleTest looks: ::testing::TempDir() is a new folder of this process
/// alone, under the one it would have been, and goes with it. Two runs at once, of two builds say,
/// do not meet in files of the same name.
class OwnFolder {
 public:
  OwnFolder() {
    const char* const given = std::getenv("TEST_TMPDIR");
    // Short: the paths of sockets have 108 bytes.
    path_ = std::string(given == nullptr || *given == '\0' ? "/tmp" : given) + "/poseidon-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
    if (!path_.empty()) ::setenv("TEST_TMPDIR", path_.c_str(), /*overwrite=*/1);
  }
  ~OwnFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

 private:
  std::string path_;  ///< "": there is none, and GoogleTest takes what it finds
};

}  // namespace poseidon::testing_support
