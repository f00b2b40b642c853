#include "common/files/file_io.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::file_io_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

TEST(PathFrom, IsOnePathForAllMachines) {
  EXPECT_EQ(path_from("/jobs/a", "w"), "/jobs/a/w");
  EXPECT_EQ(path_from("/jobs/a", "./n//w"), "/jobs/a/n/w");
  EXPECT_EQ(path_from("/jobs/./a/.", "w"), "/jobs/a/w");
  EXPECT_EQ(path_from("/jobs/a", "../w"), "/jobs/w");
  EXPECT_EQ(path_from("/jobs/a", "../../w/../v"), "/v");
  EXPECT_EQ(path_from("/jobs/a", "/abs/w"), "/abs/w");
  EXPECT_EQ(path_from("/jobs/a", "w/").string(), "/jobs/a/w/");
}

class FileIo : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::path(::testing::TempDir()) / "file_io_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(FileIo, TheWayOutOfALinkedFolderIsTheSystems) {
  fs::create_directories(folder_ / "b/c");
  fs::create_directory_symlink(folder_ / "b/c", folder_ / "link");
  const fs::path real = fs::canonical(folder_);
  EXPECT_EQ(path_from(folder_ / "link", "../data"), real / "b/data");
  EXPECT_EQ(path_from(folder_, "link/../data/./x"), real / "b/data/x");
  EXPECT_EQ(path_from(folder_ / "link", "data"), folder_ / "link/data") << "as it was written";
}

TEST_F(FileIo, WritesPiecesAndReadsThemBack) {
  const fs::path path = folder_ / "a";
  const std::vector<std::string_view> pieces = {"one ", "", "two"};
  ASSERT_TRUE(write_file_atomically(path, pieces).ok());
  EXPECT_EQ(*read_file(path, 7), "one two");
  EXPECT_EQ(files(), 1u) << "no temporary file may stay";
  const std::vector<std::string_view> shorter = {"x"};
  ASSERT_TRUE(write_file_atomically(path, shorter).ok());
  EXPECT_EQ(*read_file(path, 7), "x");
}

TEST_F(FileIo, ReplacesWholeAndLeavesNothingBeside) {
  ASSERT_TRUE(write_file_atomically(folder_ / "a", "one").ok());
  ASSERT_TRUE(write_file_atomically(folder_ / "a", "two").ok());
  EXPECT_EQ(*read_file(folder_ / "a", 7), "two");
  EXPECT_EQ(files(), 1u);
  const absl::Status status = write_file_atomically(folder_ / "missing" / "a", "x");
  EXPECT_THAT(status.ToString(), HasSubstr("missing/a"));
}

TEST_F(FileIo, WhatIsNotCommittedLeavesNothing) {
  const fs::path path = folder_ / "a";
  ASSERT_TRUE(write_file_atomically(path, "old").ok());
  {
    AtomicFile first(path);
    AtomicFile second(path);
    ASSERT_TRUE(first.open().ok());
    ASSERT_TRUE(second.open().ok()) << "two writers never share a temporary file";
    ASSERT_TRUE(first.append("n").ok());
    ASSERT_TRUE(second.append("other").ok());
    ASSERT_TRUE(first.append("ew").ok());
    EXPECT_EQ(*read_file(path, 7), "old");
    EXPECT_TRUE(first.commit().ok());
  }
  EXPECT_EQ(*read_file(path, 7), "new");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileIo, ReadErrorsNameThePath) {
  const fs::path path = folder_ / "a";
  const absl::Status missing = read_file(path, 10).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), StartsWith(path.string() + ": "));
  EXPECT_THAT(std::string(read_file(folder_, 10).status().message()), HasSubstr("is a folder"));
  const std::vector<std::string_view> pieces = {"12345"};
  ASSERT_TRUE(write_file_atomically(path, pieces).ok());
  EXPECT_TRUE(read_file(path, 5).ok());
  EXPECT_THAT(std::string(read_file(path, 4).status().message()),
              HasSubstr("larger than the 4 bytes allowed"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(read_file(folder_ / "pipe", 10).status().message()),
              HasSubstr("not a regular file"));
}

TEST_F(FileIo, FullDiskLeavesTheOldFile) {
  const fs::path path = folder_ / "a";
  const std::vector<std::string_view> old = {"old"};
  ASSERT_TRUE(write_file_atomically(path, old).ok());
  // The system's limit on file sizes stands in for a full disk: write fails half way alike.
  const auto previous_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string large(10000, 'x');
  const std::vector<std::string_view> pieces = {large};
  const absl::Status status = write_file_atomically(path, pieces);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, previous_handler);

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), StartsWith(path.string() + ": cannot write"));
  EXPECT_EQ(*read_file(path, 10), "old");
  EXPECT_EQ(files(), 1u) << "the temporary file must be removed";
}

TEST_F(FileIo, ALinkIsFollowedAndStays) {
  ASSERT_TRUE(write_file_atomically(folder_ / "target", "old").ok());
  std::filesystem::create_symlink("target", folder_ / "link");
  ASSERT_TRUE(write_file_atomically(folder_ / "link", "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  EXPECT_EQ(*read_file(folder_ / "target", 100), "new");
}

TEST_F(FileIo, WhatIsNoFileIsNotReplaced) {
  const std::filesystem::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", folder_ / "to_pipe");
  for (const std::filesystem::path& path : {pipe, folder_ / "to_pipe"}) {
    const absl::Status refused = write_file_atomically(path, "new");
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("pipe: is a pipe or a device"));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  const absl::Status folder = write_file_atomically(folder_, "new");
  EXPECT_EQ(folder.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(folder.message()), HasSubstr("is a folder"));
}

TEST_F(FileIo, AFolderIsMadeWithThoseAboveIt) {
  EXPECT_TRUE(create_folder(folder_ / "a" / "b").ok());
  EXPECT_TRUE(create_folder(folder_ / "a" / "b").ok()) << "it is there already";
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b"));
  std::ofstream(folder_ / "file") << "";
  const absl::Status status = create_folder(folder_ / "file" / "c");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith((folder_ / "file" / "c").string() + ": "));
}

TEST_F(FileIo, AFileIsLockedByOneAtATime) {
  const fs::path path = folder_ / "lock";
  {
    const auto first = lock_file(path);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(lock_file(path).status().code(), absl::StatusCode::kAlreadyExists);
  }
  EXPECT_TRUE(lock_file(path).ok()) << "free again";
  EXPECT_EQ(lock_file(folder_ / "no" / "lock").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FileIo, AFolderGetsANameThatNobodyHas) {
  // Without flags (NFS and others) it is two steps, and may do no more harm.
  static constexpr auto kNoFlags = [](const char*, const char*) {
    errno = EINVAL;
    return -1;
  };
  for (const ExclusiveRename rename :
       {ExclusiveRename(exclusive_rename), ExclusiveRename(kNoFlags)}) {
    const fs::path from = folder_ / "from", to = folder_ / "to";
    fs::create_directory(from);
    fs::create_directory(to);
    EXPECT_EQ(rename_folder(from, to, rename).code(), absl::StatusCode::kAlreadyExists);
    fs::remove(to);
    fs::create_symlink("nowhere", to);
    EXPECT_EQ(rename_folder(from, to, rename).code(), absl::StatusCode::kAlreadyExists);
    fs::remove(to);
    EXPECT_TRUE(fs::exists(from));
    EXPECT_TRUE(rename_folder(from, to, rename).ok());
    EXPECT_FALSE(fs::exists(from));
    EXPECT_TRUE(fs::is_directory(to));
    EXPECT_EQ(rename_folder(from, folder_ / "other", rename).code(), absl::StatusCode::kNotFound);
    fs::remove(to);
  }
}

TEST_F(FileIo, WriteErrorsNameThePath) {
  const std::vector<std::string_view> pieces = {"x"};
  const fs::path path = folder_ / "no" / "such" / "a";
  const absl::Status status = write_file_atomically(path, pieces);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), StartsWith(path.string() + ": "));
  fs::create_directory(folder_ / "taken");
  EXPECT_FALSE(write_file_atomically(folder_ / "taken", pieces).ok());
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace poseidon::file_io_test
