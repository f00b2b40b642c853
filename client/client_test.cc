// The C interface without a cluster: arguments, order, threads, fork, and a coordinator that does
// not answer. tests/process/client_test.py has the cluster.

#include <gtest/gtest.h>
#include <poseidon/client.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

namespace poseidon::client_test {

constexpr const char* kJob = R"({"name": "j", "model": {"name": "m", "declared": [
    {"name": "fc", "type": "linear", "tensors": [{"name": "weight", "shape": [3, 4]},
     {"name": "bias", "shape": [3]}]}, {"name": "scale", "type": "plain",
     "tensors": [{"shape": [7]}]}], "state": [{"name": "bn.mean", "shape": [5]}]},
    "optimizer": {"learning_rate": 0.1}})";
/// Nobody listens on port 1.
constexpr const char* kOptions =
    R"({"coordinator": "127.0.0.1:1", "join_timeout_s": 2, "log": "off"})";

class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(poseidon_create(kJob, kOptions, &client_), POSEIDON_OK) << poseidon_message();
  }
  void TearDown() override { poseidon_destroy(client_); }
  void expect_says(const char* words) {
    EXPECT_NE(std::string(poseidon_message()).find(words), std::string::npos) << poseidon_message();
  }
  poseidon_client* client_ = nullptr;
};

TEST_F(ClientTest, GivesMemoryOfTheDeclaredShapes) {
  float *parameters = nullptr, *gradients = nullptr, *state = nullptr;
  int64_t elements = 0;
  ASSERT_EQ(poseidon_layer(client_, 0, &parameters, &gradients, &elements), POSEIDON_OK);
  EXPECT_EQ(elements, 15);
  for (int64_t i = 0; i < elements; ++i) {
    EXPECT_EQ(parameters[i], 0.0f);
    gradients[i] = 1.0f;
  }
  ASSERT_EQ(poseidon_layer(client_, 1, nullptr, nullptr, &elements), POSEIDON_OK);
  EXPECT_EQ(elements, 7);
  ASSERT_EQ(poseidon_state(client_, &state, &elements), POSEIDON_OK);
  EXPECT_EQ(elements, 5);
  EXPECT_EQ(state[4], 0.0f);
  EXPECT_EQ(poseidon_layer(client_, 2, nullptr, nullptr, &elements), POSEIDON_INVALID);
  expect_says("layer 2 of a model with 2 layers");
  EXPECT_EQ(poseidon_rank(client_), -1);
  EXPECT_EQ(poseidon_world_size(client_), -1);
  EXPECT_EQ(poseidon_iteration(client_), 0);
}

TEST_F(ClientTest, CallsBeforeJoinAreInvalidAndAGoodCallClearsTheMessage) {
  EXPECT_EQ(poseidon_gradient(client_, 0), POSEIDON_INVALID);
  expect_says("poseidon_gradient: call poseidon_join first");
  EXPECT_EQ(poseidon_step(client_, 0.0), POSEIDON_INVALID);
  EXPECT_EQ(poseidon_wait(client_, 0), POSEIDON_INVALID);
  EXPECT_EQ(poseidon_wait_all(client_), POSEIDON_INVALID);
  EXPECT_EQ(poseidon_finish(client_), POSEIDON_INVALID);
  EXPECT_EQ(poseidon_layer(client_, 0, nullptr, nullptr, nullptr), POSEIDON_OK);
  EXPECT_STREQ(poseidon_message(), "");
}

TEST_F(ClientTest, NullsAndWrongTextsAreInvalid) {
  poseidon_client* other = client_;
  EXPECT_EQ(poseidon_create(nullptr, kOptions, &other), POSEIDON_INVALID);
  EXPECT_EQ(other, nullptr);
  EXPECT_EQ(poseidon_create(kJob, kOptions, nullptr), POSEIDON_INVALID);
  EXPECT_EQ(poseidon_create("{", kOptions, &other), POSEIDON_INVALID);
  EXPECT_EQ(poseidon_create(kJob, R"({"coordinator": "a:1", "rnk": 0})", &other), POSEIDON_INVALID);
  expect_says("rnk");
  EXPECT_EQ(poseidon_wait(nullptr, 0), POSEIDON_INVALID);
  EXPECT_EQ(poseidon_rank(nullptr), -1);
  poseidon_destroy(nullptr);
}

TEST_F(ClientTest, ACoordinatorThatDoesNotAnswerIsNamed) {
  int64_t iteration = -1;
  EXPECT_EQ(poseidon_join(client_, &iteration), POSEIDON_TIMEOUT);
  EXPECT_EQ(iteration, -1);
  while (poseidon_join(client_, &iteration) == POSEIDON_TIMEOUT &&
         std::string(poseidon_message()).find("may be repeated") != std::string::npos) {
  }
  expect_says("127.0.0.1:1");
}

TEST_F(ClientTest, ASecondThreadIsTurnedAwayAndDestroyEndsAnUnfinishedJoin) {
  std::thread joins([this] {
    poseidon_result result = POSEIDON_INVALID;  // as long as the other thread's call comes first
    while (result == POSEIDON_INVALID) result = poseidon_join(client_, nullptr);
    EXPECT_EQ(result, POSEIDON_TIMEOUT);
  });
  bool turned_away = false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (!turned_away && std::chrono::steady_clock::now() < end) {
    turned_away = poseidon_layer(client_, 0, nullptr, nullptr, nullptr) == POSEIDON_INVALID;
    if (!turned_away) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(turned_away);
  expect_says("another thread is in a call");
  joins.join();
}

TEST_F(ClientTest, AForkedProcessIsTurnedAway) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool is_right = poseidon_wait(client_, 0) == POSEIDON_INVALID &&
                          std::string(poseidon_message()).find("forked") != std::string::npos;
    poseidon_destroy(client_);
    ::_exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(poseidon_layer(client_, 0, nullptr, nullptr, nullptr), POSEIDON_OK);
}

}  // namespace poseidon::client_test
