#include "coordinator/planning/jobs/declared_job.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::declared_job_test {
namespace {

using ::testing::HasSubstr;

std::string job(const std::string& shape, const std::string& rest = "") {
  return absl::StrCat(R"({"model": {"name": "train.py", "declared": [
      {"name": "fc1", "tensors": [{"name": "weight", "shape": [8, 4]}]},
      {"name": "fc2", "tensors": [{"name": "weight", "shape": )",
                      shape, R"(}]}]}, "name": "train")", rest, "}");
}

DeclaredJob declared(const std::string& json, std::uint32_t workers = 2,
                     std::uint32_t servers = 1) {
  return {.json = json, .workers = workers, .servers = servers};
}

TEST(DeclaredDifference, NoneBetweenEqualJobsWhateverTheOrderOfKeys) {
  EXPECT_EQ(declared_difference(declared(job("[2, 8]")), declared(job("[2, 8]"))), "");
  const std::string here = R"({"a": 1, "b": {"c": 2, "d": 3}})";
  const std::string there = R"({"b": {"d": 3, "c": 2}, "a": 1})";
  EXPECT_EQ(declared_difference(declared(here), declared(there)), "");
}

TEST(DeclaredDifference, NamesTheFirstTensorThatDiffers) {
  const std::string text = declared_difference(declared(job("[2, 8]")), declared(job("[2, 16]")));
  EXPECT_THAT(text, HasSubstr("model: layer 1, fc2: "));
  EXPECT_THAT(text, HasSubstr("2x8 here, 2x16 there"));
}

TEST(DeclaredDifference, NamesTheKeyThatDiffers) {
  const auto with = [](const std::string& batch) {
    return declared(job("[2, 8]", absl::StrCat(", \"batch_size\": ", batch)));
  };
  EXPECT_EQ(declared_difference(with("32"), with("16")), "batch_size is 32 here, 16 there");
  EXPECT_EQ(declared_difference(with("32"), declared(job("[2, 8]"))),
            "batch_size is 32 here, missing there");
  EXPECT_EQ(declared_difference(declared(job("[2, 8]")), with("16")),
            "batch_size is missing here, 16 there");
}

TEST(DeclaredDifference, NamesCountsThatDiffer) {
  const std::string same = job("[2, 8]");
  EXPECT_EQ(declared_difference(declared(same, 2), declared(same, 4)), "2 workers here, 4 there");
  EXPECT_EQ(declared_difference(declared(same, 2, 1), declared(same, 2, 3)),
            "1 servers here, 3 there");
}

TEST(DeclaredDifference, CutsLongValues) {
  const std::string long_text(5000, 'x');
  const std::string text =
      declared_difference(declared(job("[2, 8]", absl::StrCat(", \"note\": \"", long_text, "\""))),
                          declared(job("[2, 8]")));
  EXPECT_LT(text.size(), 300u);
}

}  // namespace
}  // namespace poseidon::declared_job_test
