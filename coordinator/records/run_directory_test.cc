#include "coordinator/records/run_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "coordinator/records/run_directory_test_support.h"
#include "gmock/gmock.h"

namespace poseidon::run_directory_test {
namespace {

using ::testing::HasSubstr;

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

// The model of a run that was stopped is its checkpoint's, and no finished one.
TEST_F(RunDirectoryTest, AStoppedRunsModelGoesWhenTheRunGoesOn) {
  const auto stop = [this] {
    auto directory = open();
    directory->append_line(line_of("stopped"), std::nullopt);
    directory.reset();
    std::ofstream(folder_ / "model.safetensors") << "as of the checkpoint";
    std::ofstream(folder_ / "stopped.json") << "{}";
  };
  const auto expect_gone = [this] {
    EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
    EXPECT_FALSE(fs::exists(folder_ / "stopped.json"));
    EXPECT_FALSE(fs::exists(folder_ / "earlier"));
  };
  stop();
  open(RunDirectory::Begin::kGoOn).reset();
  expect_gone();
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), line_of("stopped") + "\n");
  // A coordinator that died before it had closed the files.
  stop();
  MetricsProgress progress;
  ASSERT_TRUE(RunDirectory::reopen(folder_, {.on_closed = [] {}}, progress).ok());
  expect_gone();
  // Another run begins in its place.
  stop();
  open().reset();
  EXPECT_FALSE(fs::exists(folder_ / "stopped.json"));
  EXPECT_EQ(read_file(folder_ / "earlier/model.safetensors"), "as of the checkpoint");
  EXPECT_TRUE(fs::exists(folder_ / "earlier/stopped.json"));
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

TEST_F(RunDirectoryTest, AModelIsCheckedBeforeItIsPutInPlace) {
  auto directory = open();
  const std::vector<float> values = {1.0f, 2.0f};
  const TensorView tensor{.name = "fc.bias", .shape = {2}, .values = values};
  const auto encoded = encode_safetensors(std::span(&tensor, 1));
  ASSERT_TRUE(encoded.ok());
  const std::string bytes = encoded->header + std::string(encoded->values.front());
  const auto check = [&](const std::string& part, const std::string& digest) {
    auto file = *directory->receive_model(bytes.size());
    EXPECT_TRUE(file->append(0, part).ok());
    return file->check(digest, [](const SafetensorsHeader& header) {
      return header.find("fc.weight") == nullptr ? absl::InvalidArgumentError("no fc.weight")
                                                 : absl::OkStatus();
    });
  };
  const std::string other(bytes.size(), 'x');
  EXPECT_THAT(check(bytes.substr(1), sha256(bytes)).ToString(), HasSubstr("the model ended after"));
  EXPECT_THAT(check(other, sha256(bytes)).ToString(), HasSubstr("SHA-256 that worker 0"));
  EXPECT_THAT(check(other, sha256(other)).ToString(), HasSubstr("no safetensors file"));
  EXPECT_THAT(check(bytes, sha256(bytes)).ToString(), HasSubstr("no fc.weight"));
  auto file = *directory->receive_model(bytes.size());
  ASSERT_TRUE(file->append(0, bytes).ok());
  EXPECT_TRUE(file->check(sha256(bytes), nullptr).ok());
  EXPECT_TRUE(file->commit().ok());
  EXPECT_EQ(read_file(folder_ / "model.safetensors"), bytes);
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
}  // namespace poseidon::run_directory_test
