// With the store that it asks, behind a real port; the waiting side on the test's thread, the loop
// on another.

#include "sync/states/state_reader.h"

#include <thread>

#include "common/grpc/grpc_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_store.h"

namespace poseidon::state_reader_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Epoch kEpoch{5};

class StateReaderTest : public ::testing::Test {
 protected:
  StateReaderTest() : stores_(&grpc_.add_method(kStoreMethod)) { grpc_.start(); }
  ~StateReaderTest() override { grpc_.stop(); }

  GrpcTransport grpc_;
  Transport* const stores_;
  TestStore store_{kEpoch};
};

TEST_F(StateReaderTest, ReadsWhatTheServerHolds) {
  ASSERT_TRUE(store_.keeper().hold_state(snapshot_id(kEpoch, 7), {1, 2, 3}).ok());
  StateReader reader(stores_);
  std::vector<float> values(3);
  const absl::Status read = reader.read_held(store_.address(), kEpoch, 7, values);
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_THAT(values, ElementsAre(1, 2, 3));
}

TEST_F(StateReaderTest, WaitsForAStateThatIsOnItsWay) {
  StateReader reader(stores_);
  std::vector<float> values(2);
  // The first look finds nothing: it is over before the state is sent.
  StoreRequest look;
  look.address = store_.address();
  look.header.operation = StoreOperation::kReadHeld;
  look.header.snapshot = snapshot_id(kEpoch, 7);
  look.on_data = [](const Bytes&) { return absl::OkStatus(); };
  ASSERT_EQ(reader.read({look}).code(), absl::StatusCode::kNotFound);
  std::thread worker_0([this] {
    EXPECT_TRUE(store_.keeper().hold_state(snapshot_id(kEpoch, 7), {4, 5}).ok());
  });
  const absl::Status read = reader.read_held(store_.address(), kEpoch, 7, values);
  worker_0.join();
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_THAT(values, ElementsAre(4, 5));
}

TEST_F(StateReaderTest, AStateThatNeverComesIsGivenUpInTime) {
  StateReader reader(stores_,
                     {.transfer = {}, .pause = Milliseconds(1), .give_up_after = Milliseconds(5)});
  std::vector<float> values(2, -1);
  const absl::Status read = reader.read_held(store_.address(), kEpoch, 7, values);
  EXPECT_EQ(read.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(read.message()), HasSubstr("is worker 0 there?"));
  EXPECT_THAT(std::string(read.message()), HasSubstr(store_.address()));
  EXPECT_THAT(values, Each(-1));
}

TEST_F(StateReaderTest, AStateOfAnotherSizeIsRefused) {
  ASSERT_TRUE(store_.keeper().hold_state(snapshot_id(kEpoch, 7), {1, 2, 3}).ok());
  StateReader reader(stores_);
  std::vector<float> values(4, -1);
  const absl::Status read = reader.read_held(store_.address(), kEpoch, 7, values);
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.message()),
              HasSubstr("running statistics of 12 bytes for 4 values"));
  EXPECT_THAT(values, Each(-1));
}

TEST_F(StateReaderTest, AServerThatIsNotThereIsNamedInTime) {
  StateReaderOptions options;
  options.transfer.give_up_after = Milliseconds(300);
  options.transfer.ask_second_after = Milliseconds(300);
  StateReader reader(stores_, options);
  std::vector<float> values(2);
  const absl::Status read = reader.read_held("127.0.0.1:1", kEpoch, 7, values);
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(read.message()), HasSubstr("127.0.0.1:1 did not answer"));
}

TEST_F(StateReaderTest, CancelEndsAReadNowAndLater) {
  StateReader reader(stores_);
  std::vector<float> values(2);
  std::thread other([&reader] { reader.cancel(absl::CancelledError("a worker is lost")); });
  EXPECT_EQ(reader.read_held("127.0.0.1:1", kEpoch, 7, values).message(), "a worker is lost");
  other.join();
  EXPECT_EQ(reader.read_held("127.0.0.1:1", kEpoch, 7, values).message(), "a worker is lost");
}

}  // namespace
}  // namespace poseidon::state_reader_test
