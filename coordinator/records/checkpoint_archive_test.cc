#include "coordinator/records/checkpoint_archive.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/wire/snapshot.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::checkpoint_archive_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ArchiveTest : public ::testing::Test {
 protected:
  ArchiveTest()
      : folder_(fs::path(::testing::TempDir()) / absl::StrCat("archive_", ::getpid())),
        archive_(folder_ / "checkpoints") {
    fs::remove_all(folder_);
    EXPECT_TRUE(archive_.create().ok());
    fs::create_directories(job());
  }
  ~ArchiveTest() override { fs::remove_all(folder_); }

  fs::path job() const { return folder_ / "checkpoints" / "digits-1"; }
  static CheckpointManifest manifest(Iteration iteration) {
    CheckpointManifest manifest;
    manifest.snapshot = snapshot_id(Epoch(1), iteration);
    manifest.job_id = "digits-1";
    manifest.job_name = "digits";
    manifest.job_json = "{}";
    manifest.run_directory = "/runs/1";
    manifest.workers = 1;
    manifest.begun_with = 1;
    manifest.stores = {std::string(32, 'a')};
    manifest.plan = {.servers = 1, .layers = {{.name = "fc", .shape = {2, 2}, .parameters = 4}}};
    manifest.pieces = {{.layer = LayerIndex(0), .elements = 4},
                       {.layer = std::nullopt, .holder = ServerIndex(0), .giver = WorkerRank(0)}};
    return manifest;
  }
  void write(Iteration iteration) const {
    const CheckpointManifest written = manifest(iteration);
    std::ofstream(job() / (snapshot_name(written.snapshot) + ".json")) << manifest_to_json(written);
  }
  std::vector<Iteration> load() {
    unreadable_.clear();
    std::vector<Iteration> iterations;
    for (const CheckpointManifest& manifest : archive_.load(unreadable_)) {
      iterations.push_back(manifest.iteration());
    }
    return iterations;
  }

  const fs::path folder_;
  const CheckpointArchive archive_;
  std::vector<std::string> unreadable_;
};

TEST_F(ArchiveTest, ManifestsAreReadOldestFirst) {
  EXPECT_THAT(load(), IsEmpty());
  EXPECT_THAT(unreadable_, IsEmpty());
  write(20);
  write(10);
  std::ofstream(job() / "1-30.json.tmp-1-0") << "half";  // of a writer that was killed
  EXPECT_THAT(load(), ElementsAre(10, 20));
  EXPECT_THAT(unreadable_, IsEmpty());
}

TEST_F(ArchiveTest, WhatKilledProcessesLeftIsNoDamageAndGoes) {
  write(10);
  const fs::path marker = folder_ / "checkpoints" / "CHECKPOINTS.tmp-4955-0";
  const fs::path half = job() / "1-30.json.tmp-1-0";
  const fs::path left = folder_ / "checkpoints" / "digits-0";
  std::ofstream(marker) << "The manifests";
  std::ofstream(half) << "half";
  fs::create_directory(left);
  std::ofstream(left / "1-5.json.tmp-1-0") << "half";
  EXPECT_THAT(load(), ElementsAre(10));
  EXPECT_THAT(unreadable_, IsEmpty());
  EXPECT_TRUE(archive_.create().ok());
  EXPECT_FALSE(fs::exists(marker) || fs::exists(half) || fs::exists(left));
  EXPECT_THAT(load(), ElementsAre(10));
}

TEST_F(ArchiveTest, AJobsFolderGoesWithItsLastManifest) {
  struct AtOnce final : Background {
    void enqueue(std::function<void()> task) override { task(); }
  } disk;
  write(10);
  write(20);
  const auto done = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
  archive_.remove(disk, manifest(10), done);
  EXPECT_THAT(load(), ElementsAre(20));
  archive_.remove(disk, manifest(20), done);
  EXPECT_FALSE(fs::exists(job()));
  archive_.write(disk, manifest(30), done);
  EXPECT_THAT(load(), ElementsAre(30));
}

TEST_F(ArchiveTest, WhatIsNoManifestIsToldAndHidesNoOther) {
  write(10);
  std::ofstream(job() / "1-20.json") << "";
  fs::create_directory(job() / "1-30.json");
  fs::create_symlink("1-40.json", job() / "1-40.json");
  std::ofstream(folder_ / "checkpoints" / "digits-2") << "";
  fs::create_symlink("/nowhere", folder_ / "checkpoints" / "digits-3");
  EXPECT_THAT(load(), ElementsAre(10));
  EXPECT_THAT(unreadable_,
              ::testing::UnorderedElementsAre(HasSubstr("1-20.json"), HasSubstr("1-30.json"),
                                              HasSubstr("1-40.json"), HasSubstr("digits-2"),
                                              HasSubstr("digits-3")));
}

TEST_F(ArchiveTest, AFolderThatIsNotThereIsNotAnEmptyOne) {
  fs::remove_all(job());
  EXPECT_THAT(load(), IsEmpty());
  EXPECT_THAT(unreadable_, IsEmpty()) << "nothing was ever committed";
  fs::remove(folder_ / "checkpoints" / "CHECKPOINTS");
  fs::create_directory(folder_ / "checkpoints" / "lost+found");
  EXPECT_THAT(load(), IsEmpty());
  EXPECT_THAT(unreadable_, ElementsAre(HasSubstr("is its disk mounted?")));
  fs::remove_all(folder_ / "checkpoints");
  EXPECT_THAT(load(), IsEmpty());
  EXPECT_THAT(unreadable_, ElementsAre(HasSubstr("No such file")));
  std::ofstream(folder_ / "checkpoints") << "";
  EXPECT_THAT(load(), IsEmpty());
  EXPECT_THAT(unreadable_, ElementsAre(HasSubstr("Not a directory")));
}

TEST_F(ArchiveTest, NothingIsWrittenToAFolderWhoseDiskIsNotMounted) {
  struct AtOnce final : Background {
    void enqueue(std::function<void()> task) override { task(); }
  } disk;
  const auto write_one = [&] {
    absl::Status status = absl::UnknownError("not called");
    archive_.write(disk, manifest(10), [&](const absl::Status& result) { status = result; });
    return status;
  };
  EXPECT_TRUE(write_one().ok());
  EXPECT_THAT(load(), ElementsAre(10));
  fs::remove_all(job());
  fs::remove(folder_ / "checkpoints" / "CHECKPOINTS");
  EXPECT_THAT(std::string(write_one().message()), HasSubstr("is its disk mounted?"));
  EXPECT_FALSE(fs::exists(job())) << "a later start would take it for the real one";
  EXPECT_TRUE(archive_.create().ok());
  EXPECT_TRUE(write_one().ok());
  EXPECT_THAT(load(), ElementsAre(10));
}

}  // namespace
}  // namespace poseidon::checkpoint_archive_test
