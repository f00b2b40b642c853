// With the store that it speaks to, on a network with faults; the waiting side on the test's
// thread, the loop on another.

#include "worker/state_sender.h"

#include <atomic>
#include <optional>
#include <thread>

#include "common/grpc_transport.h"
#include "common/store_client.h"
#include "common/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint_keeper.h"
#include "server/memory_chunk_store.h"
#include "server/store_service.h"

namespace poseidon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Epoch kEpoch{5};

/// A server's store at an address of its own.
class Store {
 public:
  explicit Store(const std::string& address = "127.0.0.1:0")
      : keeper_(std::make_unique<MemoryChunkStore>(), &*disk_),
        stores_(&grpc_.for_method(kStoreMethod)),
        service_(stores_, &keeper_) {
    keeper_.begin(kEpoch, 1, nullptr);
    const auto listening = stores_->listen(address, &service_);
    EXPECT_TRUE(listening.ok()) << listening.status();
    address_ = listening.value_or("");
    grpc_.start();
  }
  ~Store() {
    grpc_.stop();
    disk_.reset();
  }
  const std::string& address() const { return address_; }
  CheckpointKeeper& keeper() { return keeper_; }

 private:
  GrpcTransport grpc_;
  std::optional<BackgroundThread> disk_{std::in_place};
  CheckpointKeeper keeper_;
  Transport* const stores_;
  StoreService service_;
  std::string address_;
};

class StateSenderTest : public ::testing::Test {
 protected:
  StateSenderTest() : stores_(&grpc_.for_method(kStoreMethod)) { grpc_.start(); }
  ~StateSenderTest() override { grpc_.stop(); }

  GrpcTransport grpc_;
  Transport* const stores_;
};

TEST_F(StateSenderTest, EveryServerHasTheStateOnceWaitReturns) {
  Store one, other;
  StateSender sender(stores_, kEpoch, {one.address(), other.address()});
  for (Iteration version = 0; version < 20; ++version) {
    sender.send(version, {static_cast<float>(version), 1});
    const absl::Status held = sender.wait(version);
    ASSERT_TRUE(held.ok()) << held;
    for (Store* const store : {&one, &other}) {
      const HeldStates::State state = store->keeper().held_state(snapshot_id(kEpoch, version));
      ASSERT_NE(state, nullptr);
      EXPECT_THAT(*state, ElementsAre(static_cast<float>(version), 1));
    }
  }
  EXPECT_EQ(one.keeper().held_states()->oldest, 17);
}

TEST_F(StateSenderTest, AServerOfAnotherEpochEndsIt) {
  Store store;
  StateSender sender(stores_, Epoch(6), {store.address()});
  sender.send(1, {1});
  const absl::Status status = sender.wait(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
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
}  // namespace poseidon
