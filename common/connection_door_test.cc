#include "common/connection_door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "gtest/gtest.h"

namespace poseidon {
namespace {

constexpr std::chrono::seconds kPatience{20};

Descriptor connect_to(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

/// Waits until the other side has closed it.
bool is_closed(const Descriptor& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, 0) <= 0;
}

class Door : public ::testing::Test {
 protected:
  void open(DoorLimits limits) {
    auto door = ConnectionDoor::open("127.0.0.1:0", limits);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    door_->start(
        [this](int socket) {
          const std::lock_guard<std::mutex> lock(mutex_);
          taken_.emplace_back(socket);
          changed_.notify_all();
        },
        [this](const std::string& peer) {
          const std::lock_guard<std::mutex> lock(mutex_);
          EXPECT_EQ(peer, "127.0.0.1");
          ++refused_;
          changed_.notify_all();
        });
  }
  bool wait_taken(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return taken_.size() >= count; });
  }
  bool wait_refused(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return refused_ >= count; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Descriptor> taken_;
  int refused_ = 0;
  std::unique_ptr<ConnectionDoor> door_;  ///< last
};

TEST_F(Door, HandsOverAsManyAsThereMayBeAndMoreOnceSomeHaveGone) {
  open({.connections = 3, .per_address = 3});
  std::vector<Descriptor> callers;
  for (int i = 0; i < 3; ++i) callers.push_back(connect_to(door_->port()));
  ASSERT_TRUE(wait_taken(3));
  const Descriptor one_too_many = connect_to(door_->port());
  EXPECT_TRUE(is_closed(one_too_many));
  ASSERT_TRUE(wait_refused(1));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken_.pop_back();
  }
  // At the limit the door looks for room now and then, not at every knock.
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  std::size_t taken = 2;
  while (taken < 3 && std::chrono::steady_clock::now() < give_up) {
    callers.push_back(connect_to(door_->port()));
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(10), [&] { return taken_.size() == 3; });
    taken = taken_.size();
  }
  EXPECT_EQ(taken, 3U);
}

TEST_F(Door, OneAddressDoesNotTakeAll) {
  open({.connections = 10, .per_address = 2});
  std::vector<Descriptor> callers;
  for (int i = 0; i < 2; ++i) callers.push_back(connect_to(door_->port()));
  ASSERT_TRUE(wait_taken(2));
  EXPECT_TRUE(is_closed(connect_to(door_->port())));
  EXPECT_TRUE(wait_refused(1));
}

TEST_F(Door, AFloodBeyondTheProcesssFilesDoesNotEndIt) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 80;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  open({});  // finds out itself what is possible: 40
  std::vector<Descriptor> callers;
  for (int i = 0; i < 20; ++i) callers.push_back(connect_to(door_->port()));
  ASSERT_TRUE(wait_taken(20));
  {
    // Nobody can open one more file, this process's own ends included.
    std::vector<Descriptor> all;
    while (true) {
      Descriptor next(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (!next.is_open()) break;
      all.push_back(std::move(next));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(door_->port()));
    // Two of them knock: there is no file left to take them with.
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(::connect(all[i].get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    }
    all.resize(2);  // the others are closed, and room is found
    EXPECT_TRUE(wait_taken(22));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(DoorAddress, APortHasOneListener) {
  const auto first = ConnectionDoor::open("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = ConnectionDoor::open("127.0.0.1:" + std::to_string((*first)->port()));
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_TRUE(absl::IsInvalidArgument(ConnectionDoor::open("127.0.0.1").status()));
  EXPECT_FALSE(ConnectionDoor::open("192.0.2.1:0").ok()) << "not this machine's";
}

TEST(DoorAddress, AWildcardIsReachedByBothFamilies) {
  const auto door = ConnectionDoor::open("0.0.0.0:0");
  ASSERT_TRUE(door.ok()) << door.status();
  EXPECT_GT((*door)->port(), 0);
  EXPECT_TRUE(connect_to((*door)->port()).is_open());
}

}  // namespace
}  // namespace poseidon
