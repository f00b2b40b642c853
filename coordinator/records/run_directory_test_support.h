#pragma once

// Shared by tests of the run directory: an own directory for each test, and its messages.

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "coordinator/records/run_directory.h"
#include "gtest/gtest.h"

namespace poseidon {

namespace fs = std::filesystem;

inline std::string read_file(const fs::path& path) {
  std::stringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

class RunDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("poseidon_run_directory_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<RunDirectory> open(RunDirectory::Begin begin = RunDirectory::Begin::kAnew) {
    auto directory = RunDirectory::open(
        folder_, begin,
        {.on_written = [this](SnapshotId version) { written_.push_back(version); },
         .on_trouble =
             [this](const absl::Status& status) {
               troubles_.push_back(status);
               told_ = true;
             },
         .on_error = [this](const absl::Status& status) { errors_.push_back(status); },
         .on_record =
             [this](const absl::Status& status) {
               records_.push_back(status);
               told_ = true;
             },
         .on_closed = [this] { ++closed_; }});
    EXPECT_TRUE(directory.ok()) << directory.status();
    return *std::move(directory);
  }

  fs::path folder_;
  // Written by the writer thread, read after the directory is destroyed (which joins it).
  std::vector<absl::Status> troubles_, errors_, records_;
  std::vector<SnapshotId> written_;
  int closed_ = 0;
  std::atomic<bool> told_ = false;  ///< of trouble
};

inline std::string iteration_line(Iteration i) {
  return R"({"iteration":)" + std::to_string(i) +
         R"(,"loss":0.5,"learning_rate":0.1,"images_per_s":10.5})";
}
inline std::string test_line(Iteration i) {
  return R"({"iteration":)" + std::to_string(i) + R"(,"test_loss":0.5,"test_accuracy":0.25})";
}

}  // namespace poseidon
