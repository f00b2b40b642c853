#include "common/daemon/service_manager.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "gtest/gtest.h"

namespace poseidon::service_manager_test {
namespace {

/// systemd's end: the socket that it names in the environment of a service.
class ServiceManagerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path =
        (std::filesystem::path(::testing::TempDir()) / ("notify-" + std::to_string(::getpid())))
            .string();
    ::unlink(path.c_str());
    socket_ = Descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.c_str(), path.size());
    ASSERT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  }

  /// The next message, "" when none comes within `timeout_ms`.
  std::string next(int timeout_ms) {
    pollfd fd{socket_.get(), POLLIN, 0};
    if (::poll(&fd, 1, timeout_ms) != 1) return "";
    std::array<char, 512> bytes{};
    const ssize_t size = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
  }

  Descriptor socket_;
};

constexpr std::chrono::hours kFarAway{1};
constexpr int kSoonMs = 10'000;  // only ever waited for in full when the test fails

TEST_F(ServiceManagerTest, TellsReadinessAndTheEnd) {
  const LoopPulse pulse("heartbeats", SystemClock().now());
  ServiceManager manager(&pulse);
  manager.ready("listens on 10.0.0.1:4700");
  EXPECT_EQ(next(kSoonMs), "READY=1\nSTATUS=listens on 10.0.0.1:4700");
  manager.stopping();
  EXPECT_EQ(next(kSoonMs), "STOPPING=1");
  EXPECT_EQ(next(0), "") << "the unit has no watchdog";
}

TEST_F(ServiceManagerTest, FeedsTheWatchdogWhileTheDaemonLives) {
  ::setenv("WATCHDOG_USEC", "20000", 1);
  LoopPulse pulse("heartbeats", SystemClock().now() + kFarAway);
  ServiceManager manager(&pulse);
  EXPECT_EQ(next(kSoonMs), "WATCHDOG=1");
  // The loop has stood still: but for what was on its way, nothing is told (100 would be 1 s).
  pulse.turn(SystemClock().now() - kFarAway);
  for (int told = 0; !next(500).empty(); ++told) ASSERT_LT(told, 100);
  pulse.turn(SystemClock().now() + kFarAway);
  EXPECT_EQ(next(kSoonMs), "WATCHDOG=1");
}

TEST(ServiceManager, DoesNothingWithoutOne) {
  const LoopPulse pulse("heartbeats", SystemClock().now());
  ServiceManager manager(&pulse);
  manager.ready("");
  manager.stopping();
}

TEST(LoopPulse, SaysWhoWasSilentAndForHowLong) {
  using std::chrono::seconds;
  LoopPulse pulse("heartbeats", seconds(100));
  EXPECT_TRUE(pulse.alive(seconds(129), seconds(30)).ok());
  const absl::Status silent = pulse.alive(seconds(147), seconds(30));
  EXPECT_TRUE(absl::IsUnavailable(silent));
  EXPECT_EQ(silent.message().find("the loop of heartbeats has been silent for 47 s"), 0u) << silent;
  pulse.turn(seconds(146));
  EXPECT_TRUE(pulse.alive(seconds(147), seconds(30)).ok());
  EXPECT_TRUE(absl::IsUnavailable(pulse.alive(seconds(176), seconds(30))));
}

}  // namespace
}  // namespace poseidon::service_manager_test
