#include "coordinator/run_directory.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
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
         .on_closed = [this] { ++closed_; }});
    EXPECT_TRUE(directory.ok()) << directory.status();
    return *std::move(directory);
  }

  fs::path folder_;
  // Written by the writer thread, read after the directory is destroyed (which joins it).
  std::vector<absl::Status> troubles_, errors_;
  std::vector<SnapshotId> written_;
  int closed_ = 0;
  std::atomic<bool> told_ = false;  ///< of trouble
};

TEST_F(RunDirectoryTest, WritesEverythingBeforeItIsClosed) {
  auto directory = open();
  for (int i = 0; i < 1000; ++i) directory->append_line(std::to_string(i), std::nullopt);
  directory->write_file("plan.json", "{}");
  directory->close(RunEnd::kOver);
  directory->append_line("too late", std::nullopt);
  directory.reset();
  EXPECT_EQ(closed_, 1);
  EXPECT_TRUE(errors_.empty());
  std::string expected;
  for (int i = 0; i < 1000; ++i) expected += std::to_string(i) + "\n";
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), expected);
  EXPECT_EQ(read_file(folder_ / "plan.json"), "{}");
}

/// What a run's metrics begin with; `name` tells them apart.
std::string line_of(const std::string& name) {
  return R"({"iteration":0,"loss":1.0,"name":")" + name + "\"}";
}

TEST_F(RunDirectoryTest, ANewRunReplacesAnOldOne) {
  auto directory = open();
  EXPECT_FALSE(directory->replaced());
  directory->append_line(line_of("old"), std::nullopt);
  directory.reset();
  std::ofstream(folder_ / "plan.json") << "old";
  directory = open();
  EXPECT_TRUE(directory->replaced());
  EXPECT_FALSE(fs::exists(folder_ / "plan.json"));
  directory.reset();
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "");
  EXPECT_FALSE(fs::exists(folder_ / "earlier")) << "it had no model";
}

// A model may be a month of work: no run takes it away, and none that has not finished takes the
// place of one that has.
TEST_F(RunDirectoryTest, AFinishedModelIsKeptUntilTheNextOneIs) {
  const auto run = [&](const std::string& name, bool finishes) {
    auto directory = open();
    directory->append_line(line_of(name), std::nullopt);
    directory->write_file("job.json", name);
    if (name == "first") directory->write_file("plan.recommended.json", name);
    directory.reset();
    if (finishes) std::ofstream(folder_ / "model.safetensors") << name;
  };
  const fs::path earlier = folder_ / "earlier";
  run("first", true);
  run("second", false);
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), line_of("second") + "\n");
  run("third", true);
  for (const char* file : {"model.safetensors", "job.json", "plan.recommended.json"}) {
    EXPECT_EQ(read_file(earlier / file), "first") << file;
  }
  EXPECT_EQ(read_file(earlier / "metrics.jsonl"), line_of("first") + "\n");

  open(RunDirectory::Begin::kGoOn).reset();
  EXPECT_EQ(read_file(earlier / "model.safetensors"), "third");
  EXPECT_EQ(read_file(earlier / "job.json"), "third");
  EXPECT_FALSE(fs::exists(earlier / "plan.recommended.json")) << "of the first";
  EXPECT_EQ(read_file(earlier / "metrics.jsonl"), line_of("third") + "\n");
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), line_of("third") + "\n") << "it writes on in it";
}

TEST_F(RunDirectoryTest, ALinkToNoModelGoes) {
  fs::create_directories(folder_);
  fs::create_symlink("nowhere", folder_ / "model.safetensors");
  open().reset();
  EXPECT_FALSE(fs::is_symlink(folder_ / "model.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "earlier"));
}

TEST_F(RunDirectoryTest, AModelThatCannotBeKeptIsNotReplaced) {
  open().reset();
  std::ofstream(folder_ / "model.safetensors") << "old";
  std::ofstream(folder_ / "earlier") << "no folder";
  const absl::Status status = RunDirectory::open(folder_, RunDirectory::Begin::kAnew, {}).status();
  EXPECT_THAT(status.ToString(), HasSubstr("earlier"));
  EXPECT_EQ(read_file(folder_ / "model.safetensors"), "old");
}

TEST_F(RunDirectoryTest, AFileOfNoRunIsNotReplaced) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "job.json") << "somebody's own";
  const absl::Status status = RunDirectory::open(folder_, RunDirectory::Begin::kAnew, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr((folder_ / "job.json").string()));
  EXPECT_THAT(status.ToString(), HasSubstr("--run-dir"));
  EXPECT_EQ(read_file(folder_ / "job.json"), "somebody's own");
  EXPECT_FALSE(fs::exists(folder_ / "metrics.jsonl"))
      << "or the next one would take it for a run's";

  std::ofstream(folder_ / "model.safetensors") << "an exported model";
  EXPECT_FALSE(RunDirectory::open(folder_, RunDirectory::Begin::kAnew, {}).ok());
  EXPECT_EQ(read_file(folder_ / "job.json"), "somebody's own") << "it went aside with the model";

  fs::rename(folder_ / "job.json", folder_ / "mine.json");
  open().reset();
  EXPECT_EQ(read_file(folder_ / "mine.json"), "somebody's own");
}

TEST_F(RunDirectoryTest, MetricsOfAnotherToolAreNotCut) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "plan.json") << "somebody's own";
  for (const std::string& foreign :
       {std::string(R"({"step": 1, "loss": 2.5})"
                    "\n"),
        std::string("no JSON"), std::string("\n"), std::string(100000, 'x')}) {
    std::ofstream(folder_ / "metrics.jsonl") << foreign;
    const absl::Status status =
        RunDirectory::open(folder_, RunDirectory::Begin::kAnew, {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr((folder_ / "metrics.jsonl").string()));
    EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), foreign);
    EXPECT_EQ(read_file(folder_ / "plan.json"), "somebody's own");
  }
  // An earlier run's, and one that ended before its first iteration.
  for (const char* own : {"{\"iteration\":0,\"loss\":2.5,\"learning_rate\":0.1}\n", ""}) {
    std::ofstream(folder_ / "metrics.jsonl") << own;
    open().reset();
    EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "");
  }
}

TEST_F(RunDirectoryTest, WhatAKilledProcessLeftHalfWrittenGoes) {
  open().reset();
  const fs::path left = folder_ / "model.safetensors.tmp-4711-3";
  const fs::path own = folder_ / "model.safetensors.tmp-mine";
  for (const fs::path& path : {left, own}) std::ofstream(path) << "half a model";
  open(RunDirectory::Begin::kGoOn).reset();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(own));
}

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
  // Until it has tried in vain: then somebody makes room.
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

// The run's disk is full, the record's is not: written at once, but not before the metrics have
// gone back, or who goes on takes the lines before for those of the record's epoch.
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
  ASSERT_EQ(troubles_.size(), 1u);
  EXPECT_THAT(troubles_[0].ToString(), HasSubstr("job.json"));
  EXPECT_EQ(read_file(records / "job.json"), "newer");
  fs::remove_all(records);
}

// Else who goes on with the run would take the lines behind for those of the course that was left.
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

TEST_F(RunDirectoryTest, TheSameFolderIsKnownByOtherNames) {
  fs::create_directories(folder_ / "run");
  fs::create_symlink("run", folder_ / "link");
  EXPECT_TRUE(is_same_folder(folder_ / "run", folder_ / "run/"));
  EXPECT_TRUE(is_same_folder(folder_ / "run", folder_ / "./x/../run"));
  EXPECT_TRUE(is_same_folder(folder_ / "run", folder_ / "link"));
  EXPECT_TRUE(is_same_folder(folder_ / "gone", folder_ / "gone/"));
  EXPECT_FALSE(is_same_folder(folder_ / "run", folder_ / "gone"));
  EXPECT_FALSE(is_same_folder(folder_ / "run", folder_));
  EXPECT_EQ(plain_folder("/a/./b//c/"), "/a/b/c");
  EXPECT_EQ(plain_folder("/"), "/");
  EXPECT_EQ(plain_folder(""), "");
}

TEST_F(RunDirectoryTest, SaysHowFarTheLinesAreOnDisk) {
  const auto version = [](Iteration iteration) { return snapshot_id(Epoch(3), iteration); };
  auto directory = open();
  for (Iteration i = 1; i <= 100; ++i) directory->append_line("x", version(i));
  directory->append_line("of a test", std::nullopt);
  directory.reset();
  ASSERT_FALSE(written_.empty());
  EXPECT_EQ(written_.back(), version(100));
  EXPECT_TRUE(std::is_sorted(written_.begin(), written_.end()));
}

TEST_F(RunDirectoryTest, AFullDiskIsSaidPlainly) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this machine has no /dev/full";
  fs::create_directories(folder_);
  fs::create_symlink("/dev/full", folder_ / "metrics.jsonl");
  auto directory = open();
  directory->append_line("x", snapshot_id(Epoch(3), 1));
  directory.reset();
  EXPECT_TRUE(written_.empty());
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_THAT(errors_[0].ToString(), HasSubstr("No space left on device"));
}

TEST_F(RunDirectoryTest, ARunThatGoesOnKeepsItsMetricsUpToThere) {
  auto directory = open();
  for (int i = 0; i < 4; ++i) {
    directory->append_line("{\"iteration\":" + std::to_string(i) + "}", std::nullopt);
  }
  directory->write_file("plan.json", "old");
  directory.reset();
  directory = open(RunDirectory::Begin::kGoOn);
  EXPECT_FALSE(directory->replaced());
  directory->roll_back(2);
  directory->append_line("{\"iteration\":2,\"again\":true}", std::nullopt);
  directory.reset();
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"),
            "{\"iteration\":0}\n{\"iteration\":1}\n{\"iteration\":2,\"again\":true}\n");
  EXPECT_FALSE(fs::exists(folder_ / "plan.json")) << "of the run before";
}

std::string iteration_line(Iteration i) {
  return R"({"iteration":)" + std::to_string(i) +
         R"(,"loss":0.5,"learning_rate":0.1,"images_per_s":10.5})";
}
std::string test_line(Iteration i) {
  return R"({"iteration":)" + std::to_string(i) + R"(,"test_loss":0.5,"test_accuracy":0.25})";
}

// More than is read at once, and a test that was told late.
TEST_F(RunDirectoryTest, LinesAreTakenBackFromTheEndOfALongFile) {
  constexpr Iteration kLines = 60000;
  const auto lines_until = [](Iteration end) {
    std::string lines;
    for (Iteration i = 0; i < end; ++i) {
      lines += iteration_line(i) + "\n";
      if (i % 1000 == 2 && i > 2) lines += test_line(i - 2) + "\n";  // two iterations late
    }
    return lines;
  };
  for (const Iteration back :
       {kLines, kLines - 1, kLines - 500, Iteration{41000}, Iteration{1}, Iteration{0}}) {
    fs::remove_all(folder_);
    auto directory = open();
    std::istringstream lines(lines_until(kLines));
    for (std::string line; std::getline(lines, line);) directory->append_line(line, std::nullopt);
    directory->roll_back(back);
    directory->append_line("more", std::nullopt);
    directory.reset();
    EXPECT_TRUE(errors_.empty());
    EXPECT_TRUE(read_file(folder_ / "metrics.jsonl") == lines_until(back) + "more\n") << back;
  }
  // At 41000: the test of 40000 was told after 40002; the one of 41000 is made again. One that was
  // told after lines that go stays.
  fs::remove_all(folder_);
  auto directory = open();
  for (const std::string& line : {iteration_line(7), iteration_line(8), iteration_line(9),
                                  test_line(8), iteration_line(10), test_line(9)}) {
    directory->append_line(line, std::nullopt);
  }
  directory->roll_back(9);
  directory.reset();
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"),
            iteration_line(7) + "\n" + iteration_line(8) + "\n" + test_line(8) + "\n");
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

TEST_F(RunDirectoryTest, AFolderThatCannotBeIsNamed) {
  const absl::Status status =
      RunDirectory::open("/proc/x", RunDirectory::Begin::kAnew, {}).status();
  EXPECT_THAT(status.ToString(), HasSubstr("/proc/x"));
}

TEST_F(RunDirectoryTest, TheModelAppearsWholeOrNotAtAll) {
  auto directory = open();
  const fs::path model = folder_ / "model.safetensors";
  {
    auto file = *directory->receive_model(10);
    EXPECT_TRUE(file->append(0, "12345").ok());
    EXPECT_FALSE(file->append(0, "12345").ok()) << "does not continue";
    EXPECT_FALSE(file->append(5, "678901").ok()) << "more than announced";
    EXPECT_FALSE(file->commit().ok()) << "less than announced";
    EXPECT_FALSE(fs::exists(model));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "the temporary file is gone";
  auto file = *directory->receive_model(10);
  EXPECT_TRUE(file->append(0, "12345").ok());
  EXPECT_TRUE(file->append(5, "67890").ok());
  EXPECT_TRUE(file->commit().ok());
  EXPECT_EQ(read_file(model), "1234567890");
}

TEST_F(RunDirectoryTest, AFolderInTheModelsPlaceIsNoFaultOfTheModel) {
  auto directory = open();
  fs::create_directory(folder_ / "model.safetensors");
  const auto refused = ModelFile::open(folder_, 3);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("is a folder"));
  fs::remove(folder_ / "model.safetensors");
  EXPECT_TRUE(ModelFile::open(folder_, 3).ok()) << "once it is away";
}

TEST_F(RunDirectoryTest, APipeThatNobodyReadsHoldsNobodyUp) {
  fs::create_directories(folder_);
  ASSERT_EQ(::mkfifo((folder_ / "metrics.jsonl").c_str(), 0600), 0);
  for (const auto begin : {RunDirectory::Begin::kGoOn, RunDirectory::Begin::kAnew}) {
    const auto refused = RunDirectory::open(folder_, begin, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("metrics.jsonl"));
  }
  MetricsProgress progress;
  EXPECT_FALSE(RunDirectory::reopen(folder_, {}, progress).ok());
}

TEST(MetricsProgress, ReadsWhatIsWholeAndInOrder) {
  const auto read = [](const std::string& text) {
    std::istringstream in(text);
    return read_metrics_progress(in);
  };
  const std::string zero = R"({"iteration":0,"loss":2.5,"learning_rate":0.1})"
                           "\n";
  const std::string one = R"({"iteration":1,"loss":1.5,"learning_rate":0.1})"
                          "\n";
  const std::string test = R"({"iteration":2,"test_loss":0.5,"test_accuracy":0.75})"
                           "\n";
  EXPECT_EQ(read("").next_iteration, 0);
  EXPECT_EQ(read("").tested_iteration, std::nullopt);
  const MetricsProgress all = read(zero + one + test);
  EXPECT_EQ(all.next_iteration, 2);
  EXPECT_EQ(all.loss, 1.5);
  EXPECT_EQ(all.tested_iteration, 2);
  EXPECT_EQ(all.test_loss, 0.5);
  EXPECT_EQ(all.test_accuracy, 0.75);
  EXPECT_EQ(all.bytes, (zero + one + test).size());
  // A torn line counts for nothing, be it by its line end only.
  for (std::size_t n = 0; n < one.size(); ++n) {
    const MetricsProgress torn = read(zero + one.substr(0, n));
    EXPECT_EQ(torn.next_iteration, 1);
    EXPECT_EQ(torn.bytes, zero.size());
  }
  for (const std::string& wrong : {std::string("[]\n"), std::string("{\"loss\":1}\n"), zero,
                                   std::string("{\"iteration\":\"1\",\"loss\":1}\n")}) {
    EXPECT_EQ(read(absl::StrCat(zero, wrong, one)).bytes, zero.size()) << wrong;
  }
}

TEST_F(RunDirectoryTest, GoesOnAfterTheLastWholeLine) {
  const std::string line = R"({"iteration":0,"loss":2.5})";
  auto first = open();
  first->append_line(line, std::nullopt);
  first.reset();
  std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << R"({"iteration":1,"lo)";
  MetricsProgress progress;
  auto again = RunDirectory::reopen(
      folder_, {.on_trouble = {}, .on_error = [](const absl::Status&) {}, .on_closed = [] {}},
      progress);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(progress.next_iteration, 1);
  EXPECT_FALSE((*again)->has_model());
  (*again)->append_line(R"({"iteration":1,"loss":2.0})", std::nullopt);
  again->reset();
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"),
            line + "\n" + R"({"iteration":1,"loss":2.0})" + "\n");
  EXPECT_EQ(
      RunDirectory::reopen(
          folder_ / "nowhere",
          {.on_trouble = {}, .on_error = [](const absl::Status&) {}, .on_closed = [] {}}, progress)
          .status()
          .code(),
      absl::StatusCode::kNotFound);
}

TEST_F(RunDirectoryTest, LinesBehindADamagedOneAreKept) {
  fs::create_directories(folder_);
  const auto line = [](int iteration) {
    return absl::StrCat(R"({"iteration":)", iteration,
                        R"(,"loss":2.5,"learning_rate":0.1,"images_per_s":9.0})", "\n");
  };
  const RunDirectory::Events events{
      .on_trouble = {}, .on_error = [](const absl::Status&) {}, .on_closed = [] {}};
  const std::string good = line(0) + line(1),
                    damaged = "{\"iteratiom" + line(2).substr(11) + line(3);
  std::ofstream(folder_ / "metrics.jsonl") << good << damaged << "{\"iter";
  MetricsProgress progress;
  ASSERT_TRUE(RunDirectory::reopen(folder_, events, progress).ok());
  EXPECT_EQ(progress.next_iteration, 2);
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), good);
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl.cut"), damaged + "{\"iter");
  fs::remove(folder_ / "metrics.jsonl.cut");
  std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << "{\"iter";
  ASSERT_TRUE(RunDirectory::reopen(folder_, events, progress).ok());
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), good);
  EXPECT_FALSE(fs::exists(folder_ / "metrics.jsonl.cut")) << "only the line that was being written";
}

}  // namespace
}  // namespace poseidon
