// A run's files on disks that accept no writes for a while: which writes wait for which, and the
// messages.

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "coordinator/records/run_directory_test_support.h"
#include "gmock/gmock.h"

namespace poseidon::run_directory_disk_test {
namespace {

using ::testing::HasSubstr;

TEST_F(RunDirectoryTest, AnErrorIsToldOnceWithItsPath) {
  auto directory = open();
  directory->write_file("missing/plan.json", "{}");
  directory->write_file("missing/job.json", "{}");
  directory.reset();
  ASSERT_EQ(errors_.size(), 1u);
  ASSERT_EQ(troubles_.size(), 1u);
  EXPECT_THAT(troubles_[0].ToString(), HasSubstr("missing/plan.json"));
  EXPECT_THAT(errors_[0].ToString(), HasSubstr("missing/plan.json"));
  EXPECT_EQ(closed_, 1);
}

TEST_F(RunDirectoryTest, WhatCouldNotBeWrittenIsTriedAgainInItsOrder) {
  auto directory = open();
  directory->append_line("first", std::nullopt);
  directory->write_file("missing/plan.json", "{}");
  directory->append_line("second", std::nullopt);
  // Until a write has failed; then there is room again.
  while (read_file(folder_ / "metrics.jsonl") != "first\n") std::this_thread::yield();
  fs::create_directories(folder_ / "missing");
  directory.reset();
  EXPECT_TRUE(errors_.empty());
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "first\nsecond\n");
  EXPECT_EQ(read_file(folder_ / "missing/plan.json"), "{}");
}

TEST_F(RunDirectoryTest, WhatLiesElsewhereDoesNotWaitForTheRunsDisk) {
  const fs::path record = fs::path(folder_).concat(".record");
  fs::remove(record);
  auto directory = open();
  directory->write_file("missing/plan.json", "{}");
  directory->write_file(record.string(), "first");
  directory->append_line("line", std::nullopt);
  directory->write_file(record.string(), "second");
  while (!fs::exists(record) || read_file(record) != "second") std::this_thread::yield();
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "") << "in its turn";
  fs::create_directories(folder_ / "missing");
  directory.reset();
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "line\n");
  EXPECT_EQ(read_file(record), "second");
  EXPECT_TRUE(errors_.empty());
  fs::remove(record);
}

// The record's disk is full, the run's is not.
TEST_F(RunDirectoryTest, AtTheEndNoLineWaitsForWhatLiesElsewhere) {
  auto directory = open();
  directory->write_file((fs::path(folder_).concat(".missing") / "record").string(), "record");
  directory->append_line("last", std::nullopt);
  directory.reset();
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "last\n");
  EXPECT_TRUE(errors_.empty());
}

TEST_F(RunDirectoryTest, LinesOfAFolderThatWasMovedAwayWaitForIt) {
  const fs::path moved = fs::path(folder_).concat(".moved");
  fs::remove_all(moved);
  auto directory = open();
  directory->append_line("first", std::nullopt);
  while (read_file(folder_ / "metrics.jsonl") != "first\n") std::this_thread::yield();
  fs::rename(folder_, moved);
  directory->append_line("second", std::nullopt);
  while (!told_) std::this_thread::yield();
  EXPECT_EQ(read_file(moved / "metrics.jsonl"), "first\n");
  fs::rename(moved, folder_);
  directory.reset();
  EXPECT_TRUE(errors_.empty());
  ASSERT_EQ(troubles_.size(), 1u);
  EXPECT_THAT(troubles_[0].ToString(), HasSubstr("was removed or moved"));
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "first\nsecond\n");
}

// The run's disk is full, the record's is not: the record is written at once, but not before the
// metrics have gone back. Otherwise the next process takes the lines before for those of the
// record's epoch.
TEST_F(RunDirectoryTest, ARecordDoesNotOvertakeMetricsThatGoBack) {
  const fs::path moved = fs::path(folder_).concat(".moved");
  const fs::path record = fs::path(folder_).concat(".record");
  fs::remove_all(moved);
  fs::remove(record);
  auto directory = open();
  directory->append_line("{\"iteration\":0}", std::nullopt);
  directory->append_line("{\"iteration\":1}", std::nullopt);
  while (!read_file(folder_ / "metrics.jsonl").ends_with("1}\n")) std::this_thread::yield();
  fs::rename(folder_, moved);
  directory->append_line("{\"iteration\":2}", std::nullopt);
  while (!told_) std::this_thread::yield();
  directory->write_file(record.string(), "before");
  while (!fs::exists(record) || read_file(record) != "before") std::this_thread::yield();
  directory->roll_back(1);
  directory->write_file(record.string(), "after");
  // Tried in vain, and more than once: the writer wakes for each record.
  const fs::path another = fs::path(folder_).concat(".another");
  fs::remove(another);
  directory->write_file(another.string(), "later");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(read_file(record), "before");
  EXPECT_FALSE(fs::exists(another));
  fs::rename(moved, folder_);
  directory.reset();
  EXPECT_TRUE(errors_.empty());
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "{\"iteration\":0}\n");
  EXPECT_EQ(read_file(record), "after");
  fs::remove(record);
  fs::remove(another);
}

// The record's disk is full, the run's is not.
TEST_F(RunDirectoryTest, LinesDoNotWaitForTheDiskOfTheRecord) {
  const fs::path records = fs::path(folder_).concat(".records");
  fs::remove_all(records);
  auto directory = open();
  directory->append_line("{\"iteration\":0}", std::nullopt);
  directory->write_file((records / "job.json").string(), "older");
  directory->append_line("{\"iteration\":1}", std::nullopt);
  directory->write_file((records / "job.json").string(), "newer");
  directory->append_line("{\"iteration\":2}", std::nullopt);
  while (!read_file(folder_ / "metrics.jsonl").ends_with("2}\n")) std::this_thread::yield();
  while (!told_) std::this_thread::yield();
  fs::create_directory(records);
  while (!fs::exists(records / "job.json")) std::this_thread::yield();
  EXPECT_EQ(read_file(records / "job.json"), "newer");
  directory.reset();
  EXPECT_TRUE(errors_.empty());
  EXPECT_TRUE(troubles_.empty()) << "of lines";
  ASSERT_EQ(records_.size(), 2u) << "once, however often it was tried";
  EXPECT_THAT(records_[0].ToString(), HasSubstr("job.json"));
  EXPECT_TRUE(records_[1].ok()) << "there at last";
  EXPECT_EQ(read_file(records / "job.json"), "newer");
  fs::remove_all(records);
}

// Otherwise the next process would take the later lines for those of the abandoned course.
TEST_F(RunDirectoryTest, LinesWaitForTheFirstRecordSinceTheyWentBack) {
  const fs::path records = fs::path(folder_).concat(".records");
  fs::remove_all(records);
  auto directory = open();
  directory->append_line("{\"iteration\":0}", std::nullopt);
  directory->append_line("{\"iteration\":1}", std::nullopt);
  directory->roll_back(1);
  directory->write_file((records / "job.json").string(), "of the new course");
  directory->append_line("{\"iteration\":1,\"again\":true}", std::nullopt);
  while (!told_) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "{\"iteration\":0}\n");
  fs::create_directory(records);
  directory.reset();
  EXPECT_TRUE(errors_.empty());
  EXPECT_EQ(read_file(records / "job.json"), "of the new course");
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"),
            "{\"iteration\":0}\n{\"iteration\":1,\"again\":true}\n");
  fs::remove_all(records);
}

/// No file of this process may be larger, while it lives.
class LargestFile {
 public:
  explicit LargestFile(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~LargestFile() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

// Where there is room for the newer one alone, the older is not written over it later.
TEST_F(RunDirectoryTest, NoOlderRecordIsWrittenAfterANewerOne) {
  const fs::path record = fs::path(folder_).concat(".record");
  const fs::path moved = fs::path(folder_).concat(".moved");
  for (const bool run_disk_works : {true, false}) {
    fs::remove(record);
    fs::remove_all(moved);
    fs::remove_all(folder_);
    auto directory = open();
    directory->append_line("x", std::nullopt);
    while (read_file(folder_ / "metrics.jsonl").empty()) std::this_thread::yield();
    if (!run_disk_works) {
      fs::rename(folder_, moved);
      directory->append_line("y", std::nullopt);
    }
    {
      const LargestFile limit(1000);
      directory->write_file(record.string(), std::string(2000, 'a'));
      directory->write_file(record.string(), "newer");
      while (!fs::exists(record)) std::this_thread::yield();
      EXPECT_EQ(read_file(record), "newer");
    }
    if (!run_disk_works) fs::rename(moved, folder_);
    directory.reset();
    EXPECT_TRUE(errors_.empty());
    EXPECT_EQ(read_file(record), "newer");
  }
  fs::remove(record);
}

TEST_F(RunDirectoryTest, AFullDiskIsSaidPlainly) {
  fs::create_directories(folder_);
  // /dev/full by another name: whatever is written to it finds the disk full.
  if (::mknod((folder_ / "metrics.jsonl").c_str(), S_IFCHR | 0666, makedev(1, 7)) != 0) {
    GTEST_SKIP() << "no device can be made here: " << std::strerror(errno);
  }
  auto directory = open();
  directory->append_line("x", snapshot_id(Epoch(3), 1));
  directory.reset();
  EXPECT_TRUE(written_.empty());
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_THAT(errors_[0].ToString(), HasSubstr("No space left on device"));
}

/// Who may make a link in the folder must not choose what is overwritten.
TEST_F(RunDirectoryTest, LinksAreNotFollowed) {
  const fs::path other = fs::path(folder_).concat(".other");
  std::ofstream(other) << "precious";
  fs::create_directories(folder_);
  fs::create_symlink(other, folder_ / "metrics.jsonl");
  const auto refused = RunDirectory::open(folder_, RunDirectory::Begin::kAnew, {});
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("metrics.jsonl is a symbolic link"));
  MetricsProgress progress;
  EXPECT_TRUE(absl::IsInvalidArgument(RunDirectory::reopen(folder_, {}, progress).status()));

  fs::remove(folder_ / "metrics.jsonl");
  auto directory = open();
  fs::create_symlink(other, folder_ / "job.json");
  fs::create_symlink(other, folder_ / "model.safetensors");
  directory->write_file("job.json", "{}");
  auto model = directory->receive_model(5);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE((*model)->append(0, "model").ok());
  ASSERT_TRUE((*model)->commit().ok());
  directory.reset();
  EXPECT_EQ(read_file(folder_ / "job.json"), "{}");
  EXPECT_EQ(read_file(folder_ / "model.safetensors"), "model");
  EXPECT_EQ(read_file(other), "precious");
  fs::remove(other);
}

/// What cannot be written when another process goes on is not the run's end.
TEST_F(RunDirectoryTest, ARunThatIsLeftDoesNotFailForItsLastLines) {
  const fs::path moved = fs::path(folder_).concat(".moved");
  const fs::path record = fs::path(folder_).concat(".record");
  fs::remove_all(moved);
  fs::remove(record);
  auto directory = open();
  directory->append_line(iteration_line(0), std::nullopt);
  while (read_file(folder_ / "metrics.jsonl").empty()) std::this_thread::yield();
  fs::rename(folder_, moved);
  directory->append_line(iteration_line(1), std::nullopt);
  directory->roll_back(1);
  directory->write_file(record.string(), "of what came after");
  directory->close(RunEnd::kLeft);
  directory.reset();
  EXPECT_TRUE(errors_.empty());
  EXPECT_EQ(closed_, 1);
  EXPECT_EQ(troubles_.size(), 1u);
  EXPECT_FALSE(fs::exists(record)) << "the metrics did not go back";
  fs::remove_all(moved);
}

}  // namespace
}  // namespace poseidon::run_directory_disk_test
