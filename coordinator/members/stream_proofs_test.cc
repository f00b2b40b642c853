#include "coordinator/members/stream_proofs.h"

#include <cstdint>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace poseidon::stream_proofs_test {
namespace {

constexpr std::uint32_t kWorkers = 3, kServers = 2;

std::function<std::uint64_t()> counting(std::uint64_t from) {
  return [next = from]() mutable { return next++; };
}

TEST(StreamProofs, WhatAWorkerShowsIsWhatTheOtherEndExpects) {
  StreamProofBook book(counting(0));
  const Epoch epoch(4);
  std::vector<v1::StreamProofs> workers;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(book.for_worker(epoch, kWorkers, kServers, rank));
    ASSERT_EQ(workers.back().expected_size(), 3);
    ASSERT_EQ(workers.back().to_workers_size(), 3);
    ASSERT_EQ(workers.back().to_servers_size(), 2);
  }
  std::set<std::uint64_t> all{0};  // 0 is none
  for (int rank = 0; rank < 3; ++rank) {
    for (int other = 0; other < 3; ++other) {
      EXPECT_EQ(workers[rank].to_workers(other), workers[other].expected(rank));
      EXPECT_TRUE(all.insert(workers[rank].to_workers(other)).second) << "used for two pairs";
    }
    for (int index = 0; index < 2; ++index) {
      const v1::StreamProofs server = book.for_server(epoch, kWorkers, kServers, index);
      ASSERT_EQ(server.expected_size(), 3);
      EXPECT_EQ(server.to_servers_size() + server.to_workers_size(), 0) << "it opens no stream";
      EXPECT_EQ(workers[rank].to_servers(index), server.expected(rank));
      EXPECT_TRUE(all.insert(server.expected(rank)).second) << "used for two pairs";
    }
  }
}

TEST(StreamProofs, EachEpochHasItsOwn) {
  StreamProofBook book(counting(1));
  const v1::StreamProofs before = book.for_server(Epoch(1), kWorkers, kServers, 0);
  EXPECT_EQ(book.for_server(Epoch(1), kWorkers, kServers, 0).expected(0), before.expected(0));
  const v1::StreamProofs after = book.for_server(Epoch(2), kWorkers, kServers, 0);
  for (int rank = 0; rank < 3; ++rank) EXPECT_NE(after.expected(rank), before.expected(rank));
}

}  // namespace
}  // namespace poseidon::stream_proofs_test
