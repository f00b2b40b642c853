#include "coordinator/watch/address_probes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <deque>

#include "absl/strings/str_cat.h"
#include "common/security/connection_door.h"
#include "coordinator/members/reach_addresses.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::address_probes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Tasks final : public Background {
 public:
  explicit Tasks(std::deque<std::function<void()>>* waiting) : waiting_(waiting) {}
  void enqueue(std::function<void()> task) override { waiting_->push_back(std::move(task)); }

 private:
  std::deque<std::function<void()>>* const waiting_;
};

NodeInfo server(std::uint64_t id, const std::string& address) {
  NodeInfo node;
  node.id = NodeId(id);
  node.role = NodeRole::kServer;
  node.address = address;
  return node;
}

class AddressProbesTest : public ::testing::Test {
 protected:
  void join(const NodeInfo& node) {
    const MutexLock lock(mutex_);
    members_.push_back(node);
    probes_.on_join(node);
  }
  void tick(int at_s) {
    const MutexLock lock(mutex_);
    probes_.tick(members_, std::chrono::seconds(at_s));
  }
  void run_all() {
    for (; !tasks_.empty(); tasks_.pop_front()) tasks_.front()();
  }
  std::string note(std::uint64_t id) {
    const MutexLock lock(mutex_);
    return probes_.note(NodeId(id));
  }

  std::deque<std::function<void()>> tasks_;
  std::vector<NodeInfo> members_;
  std::set<std::string> refuses_;
  std::vector<std::string> tried_;
  std::vector<std::string> told_;
  Mutex mutex_;
  AddressProbes probes_{
      {.reach =
           [this](const std::vector<std::string>& addresses, const std::atomic<bool>&) {
             std::vector<absl::Status> answers;
             for (const std::string& address : addresses) {
               tried_.push_back(address);
               answers.push_back(refuses_.contains(address) ? absl::UnavailableError("refused")
                                                            : absl::OkStatus());
             }
             return answers;
           },
       .background = std::make_unique<Tasks>(&tasks_)},
      mutex_,
      [this](bool is_bad, const std::string& text) {
        told_.push_back(absl::StrCat(is_bad ? "bad: " : "good: ", text));
      }};
};

TEST_F(AddressProbesTest, AnAddressThatAnswersIsNotMentioned) {
  join(server(1, "10.0.0.1:4701"));
  join(server(2, ""));
  EXPECT_THAT(tried_, IsEmpty()) << "not on the caller's thread";
  run_all();
  EXPECT_THAT(tried_, ElementsAre("10.0.0.1:4701"));
  EXPECT_EQ(note(1), "");
  EXPECT_THAT(told_, IsEmpty());
  tick(60);
  run_all();
  EXPECT_EQ(tried_.size(), 1u) << "once";
}

TEST_F(AddressProbesTest, OneThatDoesNotAnswerIsTriedAgainAndToldOfOnce) {
  refuses_ = {"10.0.0.1:4701"};
  join(server(1, "10.0.0.1:4701"));
  run_all();
  EXPECT_THAT(note(1), HasSubstr("cannot connect to 10.0.0.1:4701 (refused)"));
  EXPECT_THAT(note(1), HasSubstr("--listen"));
  tick(60);
  tick(65);
  run_all();
  EXPECT_EQ(tried_.size(), 2u) << "not more often than every ten seconds";
  EXPECT_THAT(told_, ElementsAre(HasSubstr("bad: server 10.0.0.1:4701: the coordinator cannot")));
  refuses_.clear();
  tick(71);
  run_all();
  EXPECT_EQ(note(1), "");
  EXPECT_THAT(told_.back(), HasSubstr("good: server 10.0.0.1:4701 takes connections now"));
}

TEST_F(AddressProbesTest, WhoIsGoneIsForgotten) {
  refuses_ = {"10.0.0.1:4701"};
  join(server(1, "10.0.0.1:4701"));
  run_all();
  members_.clear();
  tick(60);
  run_all();
  EXPECT_EQ(note(1), "");
  EXPECT_EQ(tried_.size(), 1u);
}

TEST(ReachAddressesTest, ListeningPortsAnswerAndOthersSayWhy) {
  const auto door = ConnectionDoor::open("127.0.0.1:0", DoorLimits{});
  ASSERT_TRUE(door.ok()) << door.status();
  const std::string open = absl::StrCat("127.0.0.1:", (*door)->port());
  const std::atomic<bool> stop{false};
  // Port 1 is nobody's.
  const std::vector<absl::Status> answers =
      reach_addresses({open, "127.0.0.1:1", "nonsense"}, Milliseconds(5000), stop);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_TRUE(answers[0].ok()) << answers[0];
  EXPECT_EQ(answers[1].message(), "Connection refused");
  EXPECT_THAT(std::string(answers[2].message()), HasSubstr("HOST:PORT"));
}

/// A firewall that drops packets looks so. Here it is a port whose only place in the queue is
/// taken.
TEST(ReachAddressesTest, AnAddressThatIsSilentIsNotWaitedForLong) {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(own);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&own), size), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(own.sin_port));
  const auto found = look_up_address(address, LookUp::kNumbersOnly);
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<Descriptor> takes;
  for (int i = 0; i < 3; ++i) takes.push_back(begin_to_connect(found->front()));
  std::atomic<bool> stop{false};
  const absl::Status silent = reach_addresses({address}, Milliseconds(300), stop).front();
  EXPECT_EQ(silent.message(), "no answer within 0.3 s");
  stop = true;
  const SystemClock clock;
  const Nanoseconds begin = clock.now();
  reach_addresses({address}, std::chrono::seconds(60), stop);
  EXPECT_LT(clock.now() - begin, std::chrono::seconds(20)) << "it is told to stop";
}

}  // namespace
}  // namespace poseidon::address_probes_test
