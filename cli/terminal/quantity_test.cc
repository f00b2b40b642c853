#include "cli/terminal/quantity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::quantity_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Quantity, Bandwidths) {
  const std::pair<const char*, double> cases[] = {
      {"10gbit", 1.25e9}, {"10 Gbit/s", 1.25e9}, {"200mbit", 25e6},  {"1.25gbyte", 1.25e9},
      {"5e9bit", 6.25e8}, {"0.5tbit", 6.25e10},  {"100KBYTE/s", 1e5}};
  for (const auto& [text, value] : cases) {
    const absl::StatusOr<double> parsed = parse_bandwidth("--bandwidth", text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_DOUBLE_EQ(*parsed, value) << text;
  }
}

TEST(Quantity, LatenciesAndOperations) {
  EXPECT_DOUBLE_EQ(*parse_latency("--latency", "50us"), 50e-6);
  EXPECT_DOUBLE_EQ(*parse_latency("--latency", "0 s"), 0.0);
  EXPECT_DOUBLE_EQ(*parse_latency("--latency", "1.5ms"), 1.5e-3);
  EXPECT_DOUBLE_EQ(*parse_operations("--device-flops", "6e12"), 6e12);
  EXPECT_DOUBLE_EQ(*parse_operations("--device-flops", "6T"), 6e12);
  EXPECT_DOUBLE_EQ(*parse_operations("--device-flops", "312 TFLOPS"), 312e12);
  EXPECT_DOUBLE_EQ(*parse_operations("--device-flops", "50gflop/s"), 50e9);
}

TEST(Quantity, NonsenseIsRefusedWithAnExample) {
  for (const char* text : {"", "gbit", "10", "10 parsec", "-5gbit", "0gbit", "nan gbit", "infgbit",
                           "1e400gbit", "10gbit10gbit", "1e30gbit", "0x10gbit"}) {
    const absl::Status status = parse_bandwidth("--bandwidth", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("--bandwidth"), HasSubstr("10gbit")));
  }
  for (const char* text : {"5", "-1ms", "1h", "ms"}) EXPECT_FALSE(parse_latency("-l", text).ok());
  for (const char* text : {"", "T", "0", "-6T", "6Tera"}) {
    EXPECT_FALSE(parse_operations("-d", text).ok()) << text;
  }
}

}  // namespace
}  // namespace poseidon::quantity_test
