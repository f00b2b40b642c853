#include "coordinator/records/earlier_run.h"

#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/records/run_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::earlier_run_test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  ///< contents by path; a folder ends in "/"

const std::string kNewMetrics = "{\"iteration\":0,\"loss\":1.5,\"of\":\"new\"}\n";

/// A run that finished where another one did before it; not all that has each.
const Files kBefore = {{"model.safetensors", "new"},
                       {"metrics.jsonl", kNewMetrics},
                       {"job.json", "new"},
                       {"plan.json", "new"},
                       {"earlier/model.safetensors", "old"},
                       {"earlier/metrics.jsonl", "old\n"},
                       {"earlier/job.json", "old"},
                       {"earlier/plan.recommended.json", "old"}};

Files after(MetricsAside metrics) {
  Files files = {{"earlier/model.safetensors", "new"},
                 {"earlier/metrics.jsonl", kNewMetrics},
                 {"earlier/job.json", "new"},
                 {"earlier/plan.json", "new"}};
  if (metrics == MetricsAside::kCopy) files["metrics.jsonl"] = kNewMetrics;
  return files;
}

std::set<std::string> names_of(const Files& files) {
  std::set<std::string> names;
  for (const auto& [name, contents] : files) names.insert(name);
  if (names.erase("earlier/incoming/") > 0) names.insert("earlier/incoming");
  return names;
}

void take(const AsideStep& step, Files& files) {
  const std::string from = step.from == "earlier/incoming" ? "earlier/incoming/" : step.from;
  ASSERT_TRUE(files.contains(from)) << from;
  if (step.kind != AsideStep::Kind::kRemove) files[step.to] = files[from];
  if (step.kind != AsideStep::Kind::kCopy) files.erase(from);
}

/// What the disk holds after each step, and before the first.
std::vector<Files> states(MetricsAside metrics) {
  std::vector<Files> states = {kBefore};
  while (states.size() < 100) {
    Files files = states.back();
    files["earlier/incoming/"] = "";
    if (states.size() > 1 && !states.back().contains("earlier/incoming/")) break;
    const auto step = next_aside_step(names_of(files), metrics);
    if (!step) break;
    take(*step, files);
    states.push_back(files);
  }
  return states;
}

class EarlierRunTest : public ::testing::TestWithParam<MetricsAside> {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("poseidon_earlier_run_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const Files& files) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (const auto& [name, contents] : files) {
      fs::create_directories((folder_ / name).parent_path());
      if (!name.ends_with('/')) std::ofstream(folder_ / name) << contents;
    }
  }
  Files read() const {
    Files files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      const std::string name = fs::relative(entry.path(), folder_).string();
      if (entry.is_directory()) {
        if (name != "earlier") files[name + "/"] = "";
        continue;
      }
      std::stringstream contents;
      contents << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      files[name] = contents.str();
    }
    return files;
  }

  fs::path folder_;
};

TEST_P(EarlierRunTest, NothingIsLostAndNoModelLiesBesideAnothersFiles) {
  const std::vector<Files> all = states(GetParam());
  ASSERT_GT(all.size(), 10u);
  for (std::size_t k = 0; k < all.size(); ++k) {
    const Files& files = all[k];
    for (const char* name : {"model.safetensors", "metrics.jsonl", "job.json", "plan.json"}) {
      int copies = 0;
      for (const char* folder : {"", "earlier/", "earlier/incoming/"}) {
        const auto file = files.find(std::string(folder) + name);
        copies += file != files.end() && absl::StrContains(file->second, "new") ? 1 : 0;
      }
      EXPECT_GE(copies, 1) << name << " after step " << k;
    }
    for (const std::string folder : {"", "earlier/", "earlier/incoming/"}) {
      const auto model = files.find(folder + "model.safetensors");
      if (model == files.end()) continue;
      for (const char* name : {"metrics.jsonl", "job.json", "plan.json", "plan.recommended.json"}) {
        const auto file = files.find(folder + name);
        if (file == files.end()) continue;
        EXPECT_TRUE(absl::StrContains(file->second, model->second))
            << folder << name << " after " << k;
      }
    }
  }
  EXPECT_EQ(all.back(), after(GetParam()));
}

TEST_P(EarlierRunTest, WhateverStepWasTheLastTheNextCallTakesItUp) {
  const std::vector<Files> all = states(GetParam());
  for (std::size_t k = 0; k < all.size(); ++k) {
    write(all[k]);
    ASSERT_TRUE(set_finished_run_aside(folder_, GetParam()).ok()) << k;
    EXPECT_EQ(read(), after(GetParam())) << "interrupted after step " << k;
    ASSERT_TRUE(set_finished_run_aside(folder_, GetParam()).ok());
    EXPECT_EQ(read(), after(GetParam())) << "once more";
  }
}

TEST_P(EarlierRunTest, SoDoesTheRunThatBeginsInTheDirectory) {
  const bool goes_on = GetParam() == MetricsAside::kCopy;
  Files expected = after(GetParam());
  expected["metrics.jsonl"] = goes_on ? kNewMetrics : "";
  const std::vector<Files> all = states(GetParam());
  for (std::size_t k = 0; k < all.size(); ++k) {
    write(all[k]);
    for (int times = 0; times < 2; ++times) {
      const auto directory = RunDirectory::open(
          folder_, goes_on ? RunDirectory::Begin::kGoOn : RunDirectory::Begin::kAnew,
          {.on_written = [](SnapshotId) {},
           .on_trouble = [](const absl::Status&) {},
           .on_error = [](const absl::Status&) {},
           .on_closed = [] {}});
      ASSERT_TRUE(directory.ok()) << directory.status();
      EXPECT_EQ(read(), expected) << "interrupted after step " << k << ", " << times;
    }
  }
}

TEST_P(EarlierRunTest, HalfACopyOfTheMetricsIsMadeAgain) {
  Files files = kBefore;
  files["earlier/incoming/metrics.jsonl.half"] = "ne";
  write(files);
  ASSERT_TRUE(set_finished_run_aside(folder_, GetParam()).ok());
  EXPECT_EQ(read(), after(GetParam()));
}

TEST_P(EarlierRunTest, AnUnfinishedRunStays) {
  const Files files = {{"metrics.jsonl", "half\n"}, {"job.json", "half"}};
  write(files);
  ASSERT_TRUE(set_finished_run_aside(folder_, GetParam()).ok());
  EXPECT_EQ(read(), files);
}

TEST_P(EarlierRunTest, WhatDoesNotGoIsNamedAndNothingHasMoved) {
  Files files = kBefore;
  std::erase_if(files, [](const auto& file) { return file.first.starts_with("earlier"); });
  files["earlier"] = "no folder";
  write(files);
  EXPECT_THAT(set_finished_run_aside(folder_, GetParam()).ToString(), HasSubstr("earlier"));
  EXPECT_EQ(read(), files);
}

INSTANTIATE_TEST_SUITE_P(Metrics, EarlierRunTest,
                         ::testing::Values(MetricsAside::kMove, MetricsAside::kCopy),
                         [](const auto& suite) {
                           return suite.param == MetricsAside::kMove ? "Move" : "Copy";
                         });

}  // namespace
}  // namespace poseidon::earlier_run_test
