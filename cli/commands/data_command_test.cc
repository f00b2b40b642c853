#include "cli/commands/data_command.h"

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/formats/test_files.h"

namespace poseidon::data_command_test {
namespace {

using ::testing::HasSubstr;

std::string error_of(const DataSourceOptions& options) {
  return std::string(source_of(options).status().message());
}

TEST(DataCommand, SourcesAsAJobNamesThem) {
  const TestFolder folder;
  std::filesystem::create_directory(folder.path("images"));
  EXPECT_EQ(source_of({.sources = {folder.path("images")}})->format, "image_folder");
  EXPECT_EQ(source_of({.sources = {folder.path("images")}})->path, folder.path("images"));
  folder.write("images/shard-00000.records", "");
  EXPECT_EQ(source_of({.sources = {folder.path("images")}})->format, "records");
  const auto idx = source_of({.sources = {"i", "l"}, .format = "idx"});
  EXPECT_EQ(idx->images, "i");
  EXPECT_EQ(idx->labels, "l");
  EXPECT_EQ(source_of({.sources = {"a", "b"}, .format = "cifar10"})->files.size(), 2u);
  EXPECT_EQ(source_of({.sources = {"a"}, .format = "cifar100"})->label_kind, "fine");
  EXPECT_EQ(source_of({.sources = {"a"}, .format = "cifar100", .labels = "coarse"})->label_kind,
            "coarse");
}

TEST(DataCommand, RefusesWithARemedy) {
  const TestFolder folder;
  const std::string file = folder.write("x.bin", "");
  EXPECT_THAT(error_of({.sources = {file}}), HasSubstr("--format idx, cifar10 or cifar100"));
  EXPECT_THAT(error_of({.sources = {folder.path("none")}}), HasSubstr("no such file or folder"));
  EXPECT_THAT(error_of({.sources = {file}, .format = "cifar"}), HasSubstr("did you mean"));
  EXPECT_THAT(error_of({.sources = {file}, .format = "idx"}), HasSubstr("two sources"));
  EXPECT_THAT(error_of({.sources = {"a", "b"}, .format = "records"}), HasSubstr("one folder"));
  EXPECT_THAT(error_of({.sources = {file}, .format = "cifar100", .labels = "x"}),
              HasSubstr("fine or coarse"));
  EXPECT_THAT(error_of({.sources = {file}, .format = "cifar10", .labels = "fine"}),
              HasSubstr("belongs to --format cifar100"));
  EXPECT_THAT(error_of({}), HasSubstr("name a source"));
}

TEST(DataCommand, SaysHowFarItIs) {
  EXPECT_EQ(visit_progress(153'000, 1'281'167, 66.2),
            "153,000 of 1,281,167 samples (12 %), 2311/s, 8:08 to go");
}

/// Whoever made the set named its files; the terminal is the operator's.
TEST(DataCommand, NamesCommandNoTerminal) {
  const TestFolder folder;
  folder.write("images/a/\x1b]0;owned\x07\n.jpg", "no image");
  testing::internal::CaptureStdout();
  EXPECT_FALSE(run_data_check({.sources = {folder.path("images")}, .threads = 1}).ok());
  std::fflush(stdout);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_THAT(said, HasSubstr("/a/ ]0;owned  .jpg: neither JPEG nor PNG\n"));
  EXPECT_EQ(said.find_first_of("\x1b\x07"), std::string::npos);
}

}  // namespace
}  // namespace poseidon::data_command_test
