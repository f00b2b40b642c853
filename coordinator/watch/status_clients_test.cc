#include "coordinator/watch/status_clients.h"
#include "common/threads/mutex.h"

#include "gtest/gtest.h"

namespace poseidon::status_clients_test {
namespace {

constexpr Nanoseconds s(std::int64_t seconds) { return std::chrono::seconds(seconds); }

TEST(StatusClientsTest, KnowsWhoWasToldOfTheEnd) {
  StatusClients clients(s(3));
  EXPECT_TRUE(clients.all_told()) << "nobody polls";
  clients.on_poll("a", false, s(10));
  EXPECT_FALSE(clients.all_told());
  clients.on_poll("b", true, s(10));
  EXPECT_FALSE(clients.all_told());
  clients.on_poll("a", true, s(11));
  EXPECT_TRUE(clients.all_told());
  clients.on_new_job();
  EXPECT_FALSE(clients.all_told());
}

TEST(StatusClientsTest, NobodyWaitsForAClientThatPollsNoMore) {
  StatusClients clients(s(3));
  clients.on_poll("gone", false, s(10));
  clients.on_poll("here", true, s(12));
  EXPECT_FALSE(clients.all_told());
  clients.on_poll("here", true, s(13));
  EXPECT_TRUE(clients.all_told());
}

TEST(StatusClientsTest, TheWaitForgetsSilentClientsFirst) {
  StatusClients clients(s(3600));
  Mutex mutex;
  MutexLock lock(mutex);
  clients.on_poll("gone", false, s(10));
  clients.wait_until_told(mutex, s(10) + s(3600));  // returns at once
  EXPECT_TRUE(clients.all_told());
}

}  // namespace
}  // namespace poseidon::status_clients_test
