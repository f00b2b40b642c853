#include "common/job/data_identity.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::data_identity_test {
namespace {

using ::testing::HasSubstr;

const DataIdentity kDigits = {.train = {.samples = 60000, .digest = 7},
                              .test = DatasetIdentity{.samples = 10000, .digest = 9}};

TEST(DataIdentity, TellsWhatDiffers) {
  EXPECT_EQ(data_difference(kDigits, kDigits), "");
  DataIdentity here = kDigits;
  here.train.samples = 59000;
  EXPECT_EQ(data_difference(here, kDigits), "59000 training samples here, 60000 there");
  here = kDigits;
  here.train.digest = 8;
  EXPECT_EQ(data_difference(here, kDigits), "other training samples (60000, as many as there)");
  here = kDigits;
  here.test->digest = 8;
  EXPECT_EQ(data_difference(here, kDigits), "other test samples (10000, as many as there)");
  here.test.reset();
  EXPECT_EQ(data_difference(here, kDigits), "") << "tests are the job's, which is the same";
}

TEST(DataIdentity, WhatCouldNotBeReadAccusesNobody) {
  DataIdentity here = kDigits;
  here.train.digest = 0;
  EXPECT_EQ(data_difference(here, kDigits), "");
  EXPECT_EQ(data_difference(kDigits, here), "");
  here.train.samples = 1;
  EXPECT_NE(data_difference(here, kDigits), "");
}

TEST(DataIdentity, WhatOneCouldNotReadIsKnownFromAnother) {
  DataIdentity unread = kDigits;
  unread.train.digest = unread.test->digest = 0;
  EXPECT_EQ(joined(unread, kDigits), kDigits);
  EXPECT_EQ(joined(kDigits, unread), kDigits);
  EXPECT_EQ(joined({.train = kDigits.train, .test = std::nullopt}, kDigits), kDigits);
  EXPECT_EQ(joined(kDigits, {.train = kDigits.train, .test = std::nullopt}), kDigits);
}

TEST(DataIdentity, StaysWhatItIsOnDiskAndOnTheWire) {
  DataIdentity data = kDigits;
  data.train.digest = std::numeric_limits<std::uint64_t>::max();
  for (const bool tests : {true, false}) {
    if (!tests) data.test.reset();
    const auto read = data_identity_from_json(
        nlohmann::json::parse(data_identity_to_json(data).dump()), "f", "data");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, data);
    v1::Ready ready;
    put_data_identity(data, ready);
    EXPECT_EQ(data_identity_of(ready), data);
  }
  EXPECT_EQ(data_identity_of(v1::Ready()), std::nullopt);
}

TEST(DataIdentity, WhatIsNoneIsNamed) {
  for (const auto& [text, what] :
       {std::pair(R"({})", "data.train"),
        std::pair(R"({"train": {"samples": 1}})", "data.train.digest"),
        std::pair(R"({"train": {"samples": -1, "digest": 1}})", "data.train.samples"),
        std::pair(R"({"train": {"samples": 1, "digest": 1}, "test": 3})", "data.test"),
        std::pair(R"({"train": {"samples": 1, "digest": 1}, "more": 3})", "data.more"),
        std::pair(R"([])", "data")}) {
    const auto read = data_identity_from_json(nlohmann::json::parse(text), "f", "data");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(read.status().message(), HasSubstr(what)) << text;
  }
}

}  // namespace
}  // namespace poseidon::data_identity_test
