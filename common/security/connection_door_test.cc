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

Descriptor connect_to(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

const Ticket kTicket = [] {
  Ticket ticket;
  for (std::size_t i = 0; i < ticket.size(); ++i) ticket[i] = static_cast<std::byte>(i + 1);
  return ticket;
}();

const std::atomic<bool> kNever{false};

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
  void open(DoorLimits limits, TicketEntrance entrance = nullptr) {
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
          EXPECT_EQ(peer, "127.0.0.1");
          refusal_ = refusal;
          ++refused_;
          changed_.notify_all();
        },
        std::move(entrance));
  }
  /// Lets in who has `kTicket`, once.
  void open_for_tickets(DoorLimits limits = {}) {
    book_.add(kTicket, true);
    open(limits, [this](const Ticket& ticket, int socket) {
      if (!book_.take(ticket)) return false;
      const std::lock_guard<std::mutex> lock(mutex_);
      with_ticket_.emplace_back(socket);
      changed_.notify_all();
      return true;
    });
  }
  bool wait_with_ticket(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return with_ticket_.size() >= count; });
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
  std::vector<Descriptor> taken_, with_ticket_;
  int refused_ = 0;
  ConnectionDoor::Refusal refusal_{};
  TicketBook<bool> book_;
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
  open({});  // finds out itself what is possible: 40, of one address 20
  std::vector<Descriptor> callers;
  for (int i = 0; i < 18; ++i) callers.push_back(connect_to(door_->port()));
  ASSERT_TRUE(wait_taken(18));
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

TEST_F(Door, WhoShowsATicketComesInByTheOtherWayWithAllElseUnread) {
  open_for_tickets();
  auto caller = connect_with_ticket(address(), kTicket, Milliseconds(20000), kNever);
  ASSERT_TRUE(caller.ok()) << caller.status();
  say(*caller, "PRI");
  ASSERT_TRUE(wait_with_ticket(1));
  EXPECT_EQ(hear(with_ticket_[0].get(), 10), "PRI");
  const Descriptor other = connect_to(door_->port());
  say(other, "\x16\x03");
  ASSERT_TRUE(wait_taken(1));
  EXPECT_EQ(hear(taken_[0].get(), 10), "\x16\x03");
  EXPECT_EQ(with_ticket_.size(), 1U);
  EXPECT_EQ(refused_, 0);
}

TEST_F(Door, ATicketIsGoodOnce) {
  open_for_tickets();
  const auto caller = connect_with_ticket(address(), kTicket, Milliseconds(20000), kNever);
  ASSERT_TRUE(caller.ok()) << caller.status();
  ASSERT_TRUE(wait_with_ticket(1));
  const auto again = connect_with_ticket(address(), kTicket, Milliseconds(20000), kNever);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(is_closed(*again));
  ASSERT_TRUE(wait_refused(1));
  EXPECT_EQ(refusal_, ConnectionDoor::Refusal::kNoGreeting);
}

TEST_F(Door, ATicketThatNobodyGaveIsRefused) {
  open_for_tickets();
  Ticket wrong = kTicket;
  wrong.back() ^= std::byte{1};
  const auto caller = connect_with_ticket(address(), wrong, Milliseconds(20000), kNever);
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_TRUE(is_closed(*caller));
  ASSERT_TRUE(wait_refused(1));
  // And does not use up the one that is.
  ASSERT_TRUE(connect_with_ticket(address(), kTicket, Milliseconds(20000), kNever).ok());
  EXPECT_TRUE(wait_with_ticket(1));
}

TEST_F(Door, AGreetingComesInPiecesAndEndsAnywhere) {
  open_for_tickets();
  std::string greeting(kGreeting.data(), kGreeting.size());
  greeting.append(reinterpret_cast<const char*>(kTicket.data()), kTicket.size());
  {
    const Descriptor hangs_up = connect_to(door_->port());
    say(hangs_up, greeting.substr(0, 12));
  }
  ASSERT_TRUE(wait_refused(1));
  const Descriptor caller = connect_to(door_->port());
  for (const char byte : greeting) say(caller, {&byte, 1});
  EXPECT_TRUE(wait_with_ticket(1));
  const Descriptor other = connect_to(door_->port());
  say(other, std::string(greeting.size(), '\0'));  // begins like one
  EXPECT_TRUE(is_closed(other));
  EXPECT_TRUE(wait_refused(2));
}

TEST_F(Door, WhoSaysNothingIsClosedAndHoldsUpNobody) {
  open_for_tickets({.greeting = Milliseconds(50)});
  const Descriptor silent = connect_to(door_->port());
  const Descriptor half = connect_to(door_->port());
  say(half, {kGreeting.data(), kGreeting.size()});
  const Descriptor caller = connect_to(door_->port());
  say(caller, "\x16");
  ASSERT_TRUE(wait_taken(1));
  EXPECT_TRUE(is_closed(silent));
  EXPECT_TRUE(is_closed(half));
  EXPECT_TRUE(wait_refused(2));
  EXPECT_EQ(refusal_, ConnectionDoor::Refusal::kNoGreeting);
}

TEST_F(Door, ClosesWhoIsArrivingWhenItGoes) {
  open_for_tickets();
  const Descriptor silent = connect_to(door_->port());
  const Descriptor other = connect_to(door_->port());
  say(other, "\x16");
  ASSERT_TRUE(wait_taken(1));  // so the silent one was accepted, too
  door_.reset();
  EXPECT_TRUE(is_closed(silent));
}

TEST(ConnectWithTicket, SaysWhoDoesNotAnswer) {
  const auto nobody = connect_with_ticket("127.0.0.1:1", kTicket, Milliseconds(20000), kNever);
  EXPECT_TRUE(absl::IsUnavailable(nobody.status())) << nobody.status();
  EXPECT_EQ(nobody.status().message(), "cannot connect to 127.0.0.1:1: Connection refused");
  EXPECT_TRUE(absl::IsInvalidArgument(
      connect_with_ticket("nowhere", kTicket, Milliseconds(20000), kNever).status()));
  const auto name = connect_with_ticket("localhost:1", kTicket, Milliseconds(20000), kNever);
  EXPECT_TRUE(absl::IsUnavailable(name.status())) << "no names are looked up";
}

TEST(ConnectWithTicket, WaitsForNobodyTooLong) {
  // Its queue is full, so who calls now waits.
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  const Descriptor in_the_queue = connect_to(port);
  const std::string there = "127.0.0.1:" + std::to_string(port);
  const auto timed_out = connect_with_ticket(there, kTicket, Milliseconds(100), kNever);
  EXPECT_EQ(timed_out.status().message(), "cannot connect to " + there + ": Connection timed out");
  const std::atomic<bool> stops{true};
  EXPECT_FALSE(connect_with_ticket(there, kTicket, Milliseconds(600000), stops).ok());
}

TEST(TicketMap, KeepsATicketForAWhile) {
  TicketMap<int> map;
  map.add(kTicket, 7, Nanoseconds(0));
  EXPECT_EQ(map.take(kTicket, kTicketLife), 7);
  EXPECT_EQ(map.take(kTicket, kTicketLife), std::nullopt);
  map.add(kTicket, 8, Nanoseconds(0));
  EXPECT_EQ(map.take(kTicket, kTicketLife + Nanoseconds(1)), std::nullopt);
  EXPECT_EQ(map.size(), 0U);
}

TEST(TicketMap, HoldsSoManyAndForgetsTheOldest) {
  TicketMap<std::size_t> map;
  const auto numbered = [](std::size_t number) {
    Ticket ticket{};
    for (std::size_t i = 0; i < 8; ++i) ticket[i] = static_cast<std::byte>(number >> (8 * i));
    return ticket;
  };
  for (std::size_t i = 0; i < kMaxTickets + 10; ++i) map.add(numbered(i), i, Nanoseconds(0));
  EXPECT_EQ(map.size(), kMaxTickets);
  EXPECT_EQ(map.take(numbered(9), Nanoseconds(0)), std::nullopt);
  EXPECT_EQ(map.take(numbered(10), Nanoseconds(0)), 10U);
  map.add(numbered(0), 0, kTicketLife + Nanoseconds(1));  // all others are too old by now
  EXPECT_EQ(map.size(), 1U);
}

}  // namespace
}  // namespace poseidon::connection_door_test
