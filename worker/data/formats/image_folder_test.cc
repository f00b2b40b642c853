#include "worker/data/formats/image_folder.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/formats/record_format.h"
#include "worker/data/formats/test_files.h"

namespace poseidon::image_folder_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ImageFolder, SortedNamesGiveLabelsAndOrder) {
  const TestFolder folder;
  folder.write("set/b/2.png", "b2");
  folder.write("set/b/10.JPEG", "b10");
  folder.write("set/Z/x.jpg", "Zx");
  folder.write("set/a c/\xC3\xA9.Jpg", "accent");
  folder.write("set/a c/notes.txt", "no sample");
  folder.write("set/a c/.hidden.jpg", "no sample");
  folder.write("set/a c/deeper/y.jpg", "no sample");
  folder.write("set/a c/folder.jpg/y.jpg", "no sample");
  folder.write("set/README.jpg", "no sample");
  folder.write("set/.cache/z.jpg", "no class");
  const auto set = open_image_folder(folder.path("set"), 3);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT((*set)->class_names(), ElementsAre("Z", "a c", "b"));
  EXPECT_EQ((*set)->sample_shape(), (Shape{0, 0, 0}));
  ASSERT_EQ((*set)->size(), 4);
  const std::vector<std::pair<std::string, int>> expected = {
      {"Zx", 0}, {"accent", 1}, {"b10", 2}, {"b2", 2}};
  EncodedSample sample;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE((*set)->read(static_cast<std::int64_t>(i), sample).ok());
    EXPECT_EQ(std::string(sample.bytes.begin(), sample.bytes.end()), expected[i].first);
    EXPECT_EQ(sample.label, expected[i].second);
    EXPECT_EQ(sample.encoding, Encoding::kImage);
  }
  EXPECT_EQ((*set)->sample_name(2), folder.path("set") + "/b/10.JPEG");
  const std::string set_path = folder.path("set");
  EXPECT_THAT((*set)->remarks(),
              ElementsAre(set_path +
                              ": in its class folders are files that are no .jpg, .jpeg or "
                              ".png, and no samples: 1, the first " +
                              set_path + "/a c/notes.txt",
                          HasSubstr("no samples are looked for: 2, the first ")));
}

// One that were passed over would move the labels of those behind it.
TEST(ImageFolder, AClassThatCannotBeLookedAtIsNotPassedOver) {
  const TestFolder folder;
  folder.write("set/a/x.jpg", "");
  folder.write("set/c/x.jpg", "");
  std::filesystem::create_symlink("/nowhere", folder.path("set/b"));
  const absl::Status refused = open_image_folder(folder.path("set"), 3).status();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("/set/b: cannot be inspected, and may be a class folder"));
  std::filesystem::remove(folder.path("set/b"));
  std::filesystem::create_directory_symlink("a", folder.path("set/b"));
  const auto set = open_image_folder(folder.path("set"), 3);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT((*set)->class_names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ((*set)->size(), 3);
}

TEST(ImageFolder, RefusesWithARemedy) {
  const TestFolder folder;
  const auto error = [&](const std::string& name, std::int64_t classes) {
    return std::string(open_image_folder(folder.path(name), classes).status().message());
  };
  EXPECT_THAT(error("none", 2), HasSubstr("none: cannot list the folder"));
  EXPECT_THAT(error(folder.write("file", ""), 2), HasSubstr("file: cannot list the folder"));
  folder.write("flat/x.jpg", "");
  EXPECT_THAT(error("flat", 2), HasSubstr("has no sub-folders"));
  folder.write("set/a/x.jpg", "");
  folder.write("set/b/x.txt", "");
  EXPECT_THAT(error("set", 2), HasSubstr("/set/b: this class has no .jpg"));
  folder.write("set/b/images/x.jpg", "");
  EXPECT_THAT(error("set", 2),
              HasSubstr("(is what is in " + folder.path("set") + "/b/images meant?)"));
  EXPECT_THAT(error("set", 1), HasSubstr("has 2 class folders, the network tells 1 classes apart"));
}

TEST(ImageFolder, WhatCannotBeReadIsTheSamplesFault) {
  const TestFolder folder;
  folder.write("set/a/1.jpg", "soon gone");
  folder.write("set/a/2.jpg", "");
  folder.write("somewhere/x", "");
  std::filesystem::create_symlink(folder.path("nowhere"), folder.path("set/a/3.jpg"));
  std::filesystem::create_symlink(folder.path("set/a/2.jpg"), folder.path("set/a/4.jpg"));
  std::filesystem::create_symlink(folder.path("somewhere"), folder.path("set/a/5.jpg"));
  std::filesystem::create_symlink("6.jpg", folder.path("set/a/6.jpg"));
  const auto set = open_image_folder(folder.path("set"), 1);
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ((*set)->size(), 6);
  std::filesystem::remove(folder.path("set/a/1.jpg"));
  EncodedSample sample;
  // 5.jpg is a link to a folder.
  for (const std::int64_t index : {0, 2, 4, 5}) {
    EXPECT_TRUE(is_unreadable((*set)->read(index, sample))) << (*set)->sample_name(index);
  }
  for (const std::int64_t index : {1, 3}) {
    EXPECT_TRUE((*set)->read(index, sample).ok());
    EXPECT_TRUE(sample.bytes.empty()) << "the decoder will say that it is empty";
  }
}

// Not an error of single samples, which others replace: training would continue with fewer of them.
TEST(ImageFolder, AFolderThatIsGoneIsTheMachinesFault) {
  const TestFolder folder;
  folder.write("set/a/x.jpg", "x");
  folder.write("set/b/y.jpg", "y");
  const auto set = open_image_folder(folder.path("set"), 2);
  ASSERT_TRUE(set.ok()) << set.status();
  EncodedSample sample;
  const auto error_of = [&](std::int64_t index) { return (*set)->read(index, sample); };

  std::filesystem::remove(folder.path("set/a/x.jpg"));
  EXPECT_TRUE(is_unreadable(error_of(0))) << "one file";
  std::filesystem::remove(folder.path("set/a"));
  EXPECT_TRUE(absl::IsInternal(error_of(0))) << "its class, perhaps a link to another disk";
  EXPECT_TRUE(error_of(1).ok());
  std::filesystem::rename(folder.path("set"), folder.path("mounted"));
  EXPECT_TRUE(absl::IsInternal(error_of(1)));
  std::filesystem::create_directory(folder.path("set"));
  EXPECT_THAT(std::string(error_of(1).message()),
              HasSubstr("/set is no longer the folder that was listed: is its disk or share"))
      << "what a disk that is no longer mounted leaves";
}

TEST(ImageFolder, TestClassesMustBeTheTrainingClasses) {
  const std::vector<std::string> classes = {"a", "b", "c"};
  EXPECT_TRUE(check_same_classes(classes, classes).ok());
  EXPECT_TRUE(check_same_classes({}, classes).ok()) << "formats without names";
  EXPECT_TRUE(check_same_classes({"Chlo\xe9"}, utf8_names({"Chlo\xe9"})).ok())
      << "no UTF-8; packed";
  EXPECT_THAT(std::string(check_same_classes(classes, {"a", "c"}).message()),
              HasSubstr("label 1 is \"b\" in data.train (3 classes) and \"c\" in data.test"));
  EXPECT_THAT(std::string(check_same_classes(classes, {"a", "b"}).message()),
              HasSubstr("label 2 is \"c\" in data.train (3 classes) and nothing in data.test"));
}

}  // namespace
}  // namespace poseidon::image_folder_test
