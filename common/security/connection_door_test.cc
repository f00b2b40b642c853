#include "common/security/connection_door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "gtest/gtest.h"

namespace poseidon::connection_door_test {
namespace {

constexpr std::chrono::seconds kPatience{20};

/// `from`: an address of this machine.
Descriptor connect_to(int port, const char* from = "127.0.0.1") {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  EXPECT_EQ(::inet_pton(AF_INET, from, &own.sin_addr), 1);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

const std::string kHello(kGreeting.data(), kGreeting.size());

void say(const Descriptor& socket, std::string_view text) {
  EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}
std::string hear(int socket, std::size_t size) {
  std::string text(size, '\0');
  pollfd readable{socket, POLLIN, 0};
  EXPECT_EQ(::poll(&readable, 1, 20000), 1);
  text.resize(
      static_cast<std::size_t>(std::max<ssize_t>(0, ::recv(socket, text.data(), text.size(), 0))));
  return text;
}

/// Waits until the other side has closed it.
bool is_closed(const Descriptor& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, 0) <= 0;
}

class Door : public ::testing::Test {
 protected:
  void open(DoorLimits limits, ConnectionDoor::Take take_stream = nullptr) {
    auto door = ConnectionDoor::open("127.0.0.1:0", limits);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    door_->start(
        [this](int socket) {
          const std::lock_guard<std::mutex> lock(mutex_);
          taken_.emplace_back(socket);
          changed_.notify_all();
        },
        [this](const std::string& peer, ConnectionDoor::Refusal refusal) {
          const std::lock_guard<std::mutex> lock(mutex_);
          EXPECT_TRUE(peer.starts_with("127.0.0.")) << peer;
          refusal_ = refusal;
          ++refused_;
          changed_.notify_all();
        },
        std::move(take_stream));
  }
  void open_for_streams(DoorLimits limits = {}) {
    open(limits, [this](int socket) {
      const std::lock_guard<std::mutex> lock(mutex_);
      streams_.emplace_back(socket);
      changed_.notify_all();
    });
  }
  bool wait_streams(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return streams_.size() >= count; });
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(door_->port()); }
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
  std::vector<Descriptor> taken_, streams_;
  int refused_ = 0;
  ConnectionDoor::Refusal refusal_{};
  std::unique_ptr<ConnectionDoor> door_;  ///< last
};

TEST_F(Door, HandsOverAsManyAsThereMayBeAndMoreOnceSomeHaveGone) {
  open({.connections = 3, .per_address = 3, .kept_for_known = 0});
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
  open({.connections = 10, .per_address = 2, .kept_for_known = 0});
  std::vector<Descriptor> callers;
  for (int i = 0; i < 2; ++i) callers.push_back(connect_to(door_->port()));
  ASSERT_TRUE(wait_taken(2));
  EXPECT_TRUE(is_closed(connect_to(door_->port())));
  EXPECT_TRUE(wait_refused(1));
}

// A node that reports the end of its job is let in when strangers have taken all the other places.
TEST_F(Door, TheLastPlacesAreForAddressesThatHaveOneOpen) {
  open({.connections = 4, .per_address = 4, .kept_for_known = 1});
  const Descriptor node = connect_to(door_->port(), "127.0.0.1");
  std::vector<Descriptor> strangers;
  for (const char* from : {"127.0.0.2", "127.0.0.3"}) {
    strangers.push_back(connect_to(door_->port(), from));
  }
  ASSERT_TRUE(wait_taken(3));
  const Descriptor one_too_many = connect_to(door_->port(), "127.0.0.4");
  EXPECT_TRUE(is_closed(one_too_many));
  EXPECT_TRUE(wait_refused(1));
  const Descriptor report = connect_to(door_->port(), "127.0.0.1");
  EXPECT_TRUE(wait_taken(4));
}

TEST_F(Door, AFloodBeyondTheProcesssFilesDoesNotEndIt) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 80;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  open({});  // finds out itself what is possible: 40, of one address 20
  std::vector<Descriptor> callers;
  for (int i = 0; i < 18; ++i) callers.push_back(connect_to(door_->port()));
  ASSERT_TRUE(wait_taken(18));
  {
    // No further file can be opened, not even this process's own ends.
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
    EXPECT_TRUE(wait_taken(20));
    const Descriptor one_more = connect_to(door_->port());
    EXPECT_TRUE(wait_refused(1)) << "half of all is not for one address";
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

TEST_F(Door, AStreamComesInByTheOtherWayWithAllElseUnread) {
  open_for_streams();
  const Descriptor caller = connect_to(door_->port());
  say(caller, kHello + "PRI");
  ASSERT_TRUE(wait_streams(1));
  EXPECT_EQ(hear(streams_[0].get(), 10), "PRI");
  const Descriptor other = connect_to(door_->port());
  say(other, "\x16\x03");
  ASSERT_TRUE(wait_taken(1));
  EXPECT_EQ(hear(taken_[0].get(), 10), "\x16\x03");
  EXPECT_EQ(streams_.size(), 1U);
  EXPECT_EQ(refused_, 0);
}

TEST_F(Door, AChangedGreetingIsRefused) {
  open_for_streams();
  std::string wrong = kHello;
  wrong.back() ^= 1;
  const Descriptor caller = connect_to(door_->port());
  say(caller, wrong);
  EXPECT_TRUE(is_closed(caller));
  ASSERT_TRUE(wait_refused(1));
  EXPECT_EQ(refusal_, ConnectionDoor::Refusal::kNoGreeting);
}

TEST_F(Door, AGreetingComesInPiecesAndEndsAnywhere) {
  open_for_streams();
  {
    const Descriptor hangs_up = connect_to(door_->port());
    say(hangs_up, kHello.substr(0, 5));
  }
  ASSERT_TRUE(wait_refused(1));
  const Descriptor caller = connect_to(door_->port());
  for (const char byte : kHello) say(caller, {&byte, 1});
  EXPECT_TRUE(wait_streams(1));
  const Descriptor other = connect_to(door_->port());
  say(other, std::string(kHello.size(), '\0'));  // begins like one
  EXPECT_TRUE(is_closed(other));
  EXPECT_TRUE(wait_refused(2));
}

TEST_F(Door, WhoSaysNothingIsClosedAndHoldsUpNobody) {
  open_for_streams({.greeting = Milliseconds(50)});
  const Descriptor silent = connect_to(door_->port());
  const Descriptor half = connect_to(door_->port());
  say(half, kHello.substr(0, 5));
  const Descriptor caller = connect_to(door_->port());
  say(caller, "\x16");
  ASSERT_TRUE(wait_taken(1));
  EXPECT_TRUE(is_closed(silent));
  EXPECT_TRUE(is_closed(half));
  EXPECT_TRUE(wait_refused(2));
  EXPECT_EQ(refusal_, ConnectionDoor::Refusal::kNoGreeting);
}

TEST_F(Door, ClosesWhoIsArrivingWhenItGoes) {
  open_for_streams();
  const Descriptor silent = connect_to(door_->port());
  const Descriptor other = connect_to(door_->port());
  say(other, "\x16");
  ASSERT_TRUE(wait_taken(1));  // so the silent one was accepted, too
  door_.reset();
  EXPECT_TRUE(is_closed(silent));
}

TEST(LookUpAddress, TellsNumbersFromNamesAndFromNonsense) {
  const auto number = look_up_address("127.0.0.1:4711", LookUp::kNumbersOnly);
  ASSERT_TRUE(number.ok()) << number.status();
  ASSERT_EQ(number->size(), 1U);
  EXPECT_EQ(number->front().storage.ss_family, AF_INET);
  EXPECT_TRUE(look_up_address("[::1]:4711", LookUp::kNumbersOnly).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(look_up_address("nowhere", LookUp::kNumbersOnly).status()));
  EXPECT_TRUE(absl::IsUnavailable(look_up_address("localhost:1", LookUp::kNumbersOnly).status()));
  const auto name = look_up_address("localhost:1", LookUp::kNames);
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_GE(name->size(), 1U);
}

}  // namespace
}  // namespace poseidon::connection_door_test
