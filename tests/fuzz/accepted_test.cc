// The code under fuzzing accepts each seed of one target; none is foreign, for example of another
// protocol version. Compiled once per target (CMakeLists.txt), together with it.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/input.h"

namespace poseidon::fuzz {
namespace {

TEST(FuzzSeeds, EachIsAccepted) {
  const std::string folder = std::string("tests/fuzz/corpus/") + POSEIDON_FUZZ_TARGET;
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    accepted = 0;
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    EXPECT_GT(accepted, 0) << entry.path() << ": if it is a regression, leave it out here";
    ++seeds;
  }
  EXPECT_GT(seeds, 2);
}

}  // namespace
}  // namespace poseidon::fuzz
