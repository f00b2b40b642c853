// With the store that it speaks to, on a network with faults; the waiting side on the test's
// thread, the loop on another.

#include "sync/states/state_sender.h"

#include <thread>

#include "common/grpc/grpc_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_store.h"

namespace poseidon::state_sender_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Epoch kEpoch{5};

class StateSenderTest : public ::testing::Test {
 protected:
  StateSenderTest() : stores_(&grpc_.add_method(kStoreMethod)) { grpc_.start(); }
  ~StateSenderTest() override { grpc_.stop(); }

  GrpcTransport grpc_;
  Transport* const stores_;
};

TEST_F(StateSenderTest, EveryServerHasTheStateOnceWaitReturns) {
  TestStore one(kEpoch), other(kEpoch);
  StateSender sender(stores_, kEpoch, {one.address(), other.address()});
  for (Iteration version = 0; version < 20; ++version) {
    sender.send(version, {static_cast<float>(version), 1});
    const absl::Status held = sender.wait(version);
    ASSERT_TRUE(held.ok()) << held;
    for (TestStore* const store : {&one, &other}) {
      const HeldStates::State state = store->keeper().held_state(snapshot_id(kEpoch, version));
      ASSERT_NE(state, nullptr);
      EXPECT_THAT(*state, ElementsAre(static_cast<float>(version), 1));
    }
  }
  EXPECT_EQ(one.keeper().held_states()->oldest, 17);
}

TEST_F(StateSenderTest, AServerOfAnotherEpochEndsIt) {
  TestStore store(kEpoch);
  StateSender sender(stores_, Epoch(6), {store.address()});
  sender.send(1, {1});
  const absl::Status status = sender.wait(1);
  // A server that was restarted: the job recovers from that.
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(store.address()));
}

TEST_F(StateSenderTest, AServerThatIsNotThereIsNamedInTime) {
  StoreTransferOptions options;
  options.give_up_after = Milliseconds(300);
  options.ask_second_after = Milliseconds(300);
  StateSender sender(stores_, kEpoch, {"127.0.0.1:1"}, options);
  sender.send(1, {1});
  const absl::Status status = sender.wait(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1 did not answer"));
}

TEST_F(StateSenderTest, CancelEndsAWait) {
  StateSender sender(stores_, kEpoch, {"127.0.0.1:1"});
  sender.send(1, {1});
  std::thread other([&sender] { sender.cancel(absl::CancelledError("a worker is lost")); });
  EXPECT_EQ(sender.wait(1).message(), "a worker is lost");
  other.join();
}

}  // namespace
}  // namespace poseidon::state_sender_test
