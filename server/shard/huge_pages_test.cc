// operator new of server/shard/huge_pages.cc, which this test is linked with.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/files/file_io.h"
#include "gtest/gtest.h"

namespace poseidon::huge_pages_test {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

bool is_at_a_huge_page(const void* block) {
  return reinterpret_cast<std::uintptr_t>(block) % kHugePageBytes == 0;
}

TEST(HugePages, LargeBlocksBeginAtOne) {
  for (const std::size_t bytes : {kHugePageBytes, kHugePageBytes + 1, 4 * kHugePageBytes + 4096}) {
    const auto block = std::make_unique<char[]>(bytes);
    EXPECT_TRUE(is_at_a_huge_page(block.get())) << bytes;
    std::memset(block.get(), 1, bytes);
  }
}

TEST(HugePages, TheKernelGivesThem) {
  const auto setting = read_file("/sys/kernel/mm/transparent_hugepage/enabled", 4096);
  if (!setting.ok() || setting->find("[never]") != std::string::npos) {
    GTEST_SKIP() << "this system gives no huge pages";
  }
  const auto block = std::make_unique<char[]>(8 * kHugePageBytes);
  std::memset(block.get(), 1, 8 * kHugePageBytes);
  const auto maps = read_file("/proc/self/smaps_rollup", 1 << 16);
  ASSERT_TRUE(maps.ok()) << maps.status();
  const std::string key = "AnonHugePages:";
  const std::size_t at = maps->find(key);
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(std::stoul(maps->substr(at + key.size())), 0u);
}

TEST(HugePages, BlocksOfAllSizesLiveAndDie) {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (std::size_t bytes = 1; bytes < 8 * kHugePageBytes; bytes = bytes * 3 + 1) {
    blocks.push_back(std::make_unique<char[]>(bytes));
    std::memset(blocks.back().get(), static_cast<int>(bytes), bytes);
    if (blocks.size() % 3 == 0) blocks.erase(blocks.begin());
  }
  EXPECT_FALSE(blocks.empty());
}

}  // namespace
}  // namespace poseidon::huge_pages_test
