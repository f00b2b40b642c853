#include "common/memory/shared_arena.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::shared_arena_test {
namespace {

constexpr std::uint64_t kCapacity = 1 << 20;

std::unique_ptr<SharedArena> make_arena() {
  auto arena = SharedArena::create(kCapacity);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

absl::Span<const std::byte> bytes_at(const void* memory, std::size_t size) {
  return {static_cast<const std::byte*>(memory), size};
}

TEST(SharedArena, WhatOneWritesTheOtherReadsInPlace) {
  const auto arena = make_arena();
  auto* memory = static_cast<char*>(arena->allocate(10000));
  std::strcpy(memory + 5000, "gradient");
  const auto offset = arena->offset_of(bytes_at(memory + 5000, 9));
  ASSERT_TRUE(offset.has_value());
  const auto view = SharedArenaView::open(arena->address());
  ASSERT_TRUE(view.ok()) << view.status();
  const auto range = (*view)->range(*offset, 9);
  ASSERT_TRUE(range.has_value());
  EXPECT_STREQ(reinterpret_cast<const char*>(range->data()), "gradient");
  std::strcpy(memory + 5000, "newer");
  EXPECT_STREQ(reinterpret_cast<const char*>(range->data()), "newer") << "no copy in between";
}

TEST(SharedArena, ACoreDumpWouldLeaveItOut) {
  const auto arena = make_arena();
  const auto view = SharedArenaView::open(arena->address());
  ASSERT_TRUE(view.ok()) << view.status();
  std::ifstream maps("/proc/self/smaps");
  int mappings = 0;
  bool is_ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" rw-s ") != std::string::npos || line.find(" r--s ") != std::string::npos) {
      is_ours = line.find("poseidon-tensors") != std::string::npos;
    } else if (is_ours && line.starts_with("VmFlags:")) {
      ++mappings;
      EXPECT_NE(line.find(" dd"), std::string::npos) << line;
      is_ours = false;
    }
  }
  EXPECT_EQ(mappings, 2);
}

TEST(SharedArena, AnotherProcessReadsItAndKeepsItWhenTheOwnerIsKilled) {
  int to_parent[2], to_child[2];
  ASSERT_EQ(::pipe(to_parent) | ::pipe(to_child), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto arena = SharedArena::create(kCapacity);
    if (!arena.ok()) ::_exit(1);
    auto* memory = static_cast<char*>((*arena)->allocate(100));
    std::strcpy(memory, "of the child");
    const ArenaAddress address = (*arena)->address();
    if (::write(to_parent[1], &address, sizeof(address)) != sizeof(address)) ::_exit(1);
    ::pause();
    ::_exit(1);
  }
  ArenaAddress address;
  ASSERT_EQ(::read(to_parent[0], &address, sizeof(address)), static_cast<ssize_t>(sizeof(address)));
  const auto view = SharedArenaView::open(address);
  ASSERT_TRUE(view.ok()) << view.status();
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_STREQ(reinterpret_cast<const char*>((*view)->range(4096, 100)->data()), "of the child");
  EXPECT_FALSE(SharedArenaView::open(address).ok()) << "nothing is left for others";
}

TEST(SharedArena, FreedMemoryIsReusedZeroedAndJoined) {
  const auto arena = make_arena();
  SplitMix64 random(3);
  std::vector<std::pair<char*, std::size_t>> taken;
  for (int step = 0; step < 2000; ++step) {
    if (!taken.empty() && random.below(2) == 0) {
      const std::size_t victim = random.below(taken.size());
      arena->free(taken[victim].first);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(victim));
      continue;
    }
    const std::size_t size = 1 + random.below(60000);
    auto* memory = static_cast<char*>(arena->allocate(size));
    if (memory == nullptr) continue;
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(memory[i], 0);
    std::memset(memory, 0x5a, size);
    for (const auto& [other, bytes] : taken) {
      ASSERT_TRUE(memory + size <= other || other + bytes <= memory) << "no overlap";
    }
    taken.emplace_back(memory, size);
  }
  for (const auto& [memory, size] : taken) arena->free(memory);
  EXPECT_EQ(arena->allocated_bytes(), 0U);
  void* all = arena->allocate(kCapacity);
  EXPECT_NE(all, nullptr) << "the holes were joined";
  EXPECT_EQ(arena->allocate(1), nullptr) << "full";
  arena->free(all);
}

// For a stream that has ended, while its last messages are still read.
TEST(SharedArena, KeptMemoryStaysAsItIsUntilItIsReclaimed) {
  const auto arena = make_arena();
  auto* memory = static_cast<char*>(arena->allocate(9000));
  std::strcpy(memory, "gradient");
  const auto view = SharedArenaView::open(arena->address());
  ASSERT_TRUE(view.ok()) << view.status();
  const auto* seen = reinterpret_cast<const char*>(
      (*view)->range(*arena->offset_of(bytes_at(memory, 9)), 9)->data());
  arena->keep_freed();
  arena->free(memory);
  EXPECT_STREQ(seen, "gradient");
  EXPECT_EQ(arena->allocate(kCapacity), nullptr) << "nobody else gets it";
  arena->reclaim();
  EXPECT_STREQ(seen, "");
  EXPECT_EQ(arena->allocated_bytes(), 0U);
  memory = static_cast<char*>(arena->allocate(kCapacity));
  ASSERT_NE(memory, nullptr);
  arena->free(memory);
  EXPECT_EQ(arena->allocated_bytes(), 0U) << "at once again";
}

TEST(SharedArena, OnlyWholeRangesInside) {
  const auto arena = make_arena();
  auto* memory = static_cast<char*>(arena->allocate(4096));
  EXPECT_FALSE(arena->offset_of(bytes_at(memory, 2 * kCapacity)));
  int outside = 0;
  EXPECT_FALSE(arena->offset_of(bytes_at(&outside, sizeof(outside))));
  EXPECT_FALSE(arena->contains(&outside));
  const auto view = *SharedArenaView::open(arena->address());
  const std::uint64_t end = arena->address().bytes;
  EXPECT_TRUE(view->range(end, 0));
  EXPECT_FALSE(view->range(end, 1));
  EXPECT_FALSE(view->range(end + 1, 0));
  EXPECT_FALSE(view->range(8, ~std::uint64_t{0}));
}

TEST(SharedArena, AnAddressThatLiesOpensNothing) {
  const auto arena = make_arena();
  std::vector<ArenaAddress> lies(6, arena->address());
  lies[0].machine ^= 1;
  lies[1].nonce_high ^= 1;
  lies[2].bytes += 4096;
  lies[3].file_descriptor = 0;
  lies[4].process_id = 0x7fffffff;
  // Shared memory without our seals could shrink under a reader.
  const Descriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(lies[5].bytes)), 0);
  lies[5].file_descriptor = static_cast<std::uint32_t>(unsealed.get());
  for (const ArenaAddress& lie : lies) {
    const auto view = SharedArenaView::open(lie);
    EXPECT_TRUE(absl::IsFailedPrecondition(view.status())) << view.status();
  }
  EXPECT_NE(::ftruncate(static_cast<int>(arena->address().file_descriptor), 4096), 0) << "sealed";
}

}  // namespace
}  // namespace poseidon::shared_arena_test
