#include "common/tensor/scan.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace poseidon::finite_test {
namespace {

TEST(Finite, FindsTheOneThatIsNot) {
  std::vector<float> values(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(all_finite(values));
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const std::size_t at : {0u, 57u, 99u}) {
      std::vector<float> spoiled = values;
      spoiled[at] = bad;
      EXPECT_FALSE(all_finite(spoiled)) << bad << " at " << at;
    }
  }
  EXPECT_TRUE(all_finite({}));
}

}  // namespace
}  // namespace poseidon::finite_test
