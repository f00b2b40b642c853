#include "common/daemon/daemon.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "common/security/security.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/log_capture.h"

namespace poseidon::daemon_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HostPort, ParsesNamesAndBothKindsOfAddresses) {
  EXPECT_EQ(*parse_host_port("node-7.lan:4711", PortZero::kRefused),
            (HostPort{"node-7.lan", 4711}));
  EXPECT_EQ(*parse_host_port("10.0.0.1:1", PortZero::kRefused), (HostPort{"10.0.0.1", 1}));
  EXPECT_EQ(*parse_host_port("[::1]:65535", PortZero::kRefused), (HostPort{"::1", 65535}));
  EXPECT_EQ(*parse_host_port("0.0.0.0:0", PortZero::kAllowed), (HostPort{"0.0.0.0", 0}));
}

TEST(HostPort, IsTheInverseOfToString) {
  for (const char* text : {"a:1", "10.0.0.1:80", "[fe80::1]:9"}) {
    EXPECT_EQ(to_string(*parse_host_port(text, PortZero::kRefused)), text);
  }
}

TEST(HostPort, RefusesEverythingElseByName) {
  for (const char* text : {"",
                           ":",
                           "host",
                           "host:",
                           ":4711",
                           "host:port",
                           "host:-1",
                           "host:+1",
                           "host: 1",
                           "host:65536",
                           "host:99999999999",
                           "host:0",
                           "::1:80",
                           "[::1]",
                           "[]:1",
                           "[::1:80",
                           "ho st:1",
                           "a/b:1",
                           "[host]:1",
                           "http://host:1"}) {
    const absl::Status status = parse_host_port(text, PortZero::kRefused).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("'") + text + "'"));
  }
  EXPECT_FALSE(parse_host_port(std::string(300, 'a') + ":1", PortZero::kRefused).ok());
}

TEST(HostPort, KnowsWildcards) {
  EXPECT_TRUE(is_wildcard_host("0.0.0.0"));
  EXPECT_TRUE(is_wildcard_host("::"));
  EXPECT_TRUE(is_wildcard_host(""));
  EXPECT_FALSE(is_wildcard_host("127.0.0.1"));
}

TEST(ExitCode, FollowsTheContract) {
  EXPECT_EQ(exit_code(absl::OkStatus()), 0);
  EXPECT_EQ(exit_code(absl::UnavailableError("")), 1);
  EXPECT_EQ(exit_code(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(exit_code(absl::NotFoundError("")), 2);
}

TEST(StartDaemon, RefusesAnUnknownLogLevel) {
  DaemonOptions options;
  options.log.level = "loud";
  EXPECT_EQ(start_daemon("test", options).code(), absl::StatusCode::kInvalidArgument);
}

// In a child process each: signals are the whole process's.
class Child {
 public:
  template <typename Body>
  explicit Child(Body body) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ready[0]);
      body(ready[1]);
      ::_exit(99);
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "the child is ready";
    ready_ = ready[0];
  }
  ~Child() { ::close(ready_); }
  void signal(int number) const { ::kill(pid_, number); }
  char next_byte() const {
    char byte = 0;
    return ::read(ready_, &byte, 1) == 1 ? byte : '\0';
  }
  int wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int ready_ = -1;
};

void say(int fd, char byte) { EXPECT_EQ(::write(fd, &byte, 1), 1); }

TEST(StopSignals, FirstSignalCallsBackOnceSecondEndsTheProcess) {
  const Child child([](int fd) {
    const StopSignals signals(
        [fd](const std::string& name) { say(fd, name == "SIGTERM" ? 'T' : 'I'); });
    say(fd, 'r');
    ::sleep(60);
  });
  child.signal(SIGTERM);
  EXPECT_EQ(child.next_byte(), 'T');
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 128 + SIGINT);
}

TEST(StopSignals, TheEndOfATerminalStopsAndEndsNothingAtOnce) {
  const Child child([](int fd) {
    ::signal(SIGHUP, SIG_DFL);  // and not as under nohup
    const StopSignals signals(
        [fd](const std::string& name) { say(fd, name == "SIGHUP" ? 'H' : '?'); });
    say(fd, 'r');
    ::sleep(60);
  });
  child.signal(SIGHUP);
  EXPECT_EQ(child.next_byte(), 'H');
  child.signal(SIGHUP);
  child.signal(SIGINT);  // of two that wait the one with the lower number is taken first
  child.signal(SIGTERM);
  EXPECT_THAT(child.wait(), ::testing::AnyOf(128 + SIGTERM, 128 + SIGINT))
      << "by either, the second";
}

TEST(StopSignals, UnderNohupTheEndOfATerminalIsNone) {
  const Child child([](int fd) {
    ::signal(SIGHUP, SIG_IGN);
    const StopSignals signals(
        [fd](const std::string& name) { say(fd, name == "SIGTERM" ? 'T' : '?'); });
    say(fd, 'r');
    ::sleep(60);
  });
  child.signal(SIGHUP);
  child.signal(SIGTERM);
  EXPECT_EQ(child.next_byte(), 'T');
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 128 + SIGTERM);
}

TEST(StopSignals, EndsItsThreadWithoutASignal) {
  const Child child([](int fd) {
    {
      const StopSignals signals([](const std::string&) {});
    }
    say(fd, 'r');
    ::_exit(0);
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(LocalHost, IsTheOneThatFacesTheOtherSide) {
  EXPECT_EQ(local_host_towards({"127.0.0.1", 4700}), "127.0.0.1");
  EXPECT_EQ(local_host_towards({"localhost", 4700}), "127.0.0.1");
  EXPECT_EQ(local_host_towards({"no.such.host.invalid", 4700}), "0.0.0.0");
}

TEST(PageAddress, APortAloneStaysOnThisMachine) {
  EXPECT_EQ(*parse_page_address("9400"), (HostPort{"127.0.0.1", 9400}));
  EXPECT_EQ(*parse_page_address(":0"), (HostPort{"127.0.0.1", 0}));
  EXPECT_EQ(*parse_page_address("0.0.0.0:9400"), (HostPort{"0.0.0.0", 9400}));
  EXPECT_EQ(*parse_page_address("[::1]:9400"), (HostPort{"::1", 9400}));
  for (const char* wrong : {"", ":", "x", "70000", "10.0.0.1", "a b:1"}) {
    EXPECT_EQ(parse_page_address(wrong).status().code(), absl::StatusCode::kInvalidArgument)
        << wrong;
  }
}

TEST(PageAddress, LoopbackIsTold) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "10.0.0.1", "::", "127.example.org", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

TEST(WarnIfOpen, AHostThatIsThisMachineAloneIsSaidToBe) {
  const auto said = [](const std::string& listen) {
    testing_support::LogCapture log;
    warn_if_open(listen, *Security::none());
    return log.end();
  };
  // A spelling of 127.0.1.1 that is not seen from the text, as a name in /etc/hosts is not.
  EXPECT_THAT(said("0x7f000101:4700"),
              HasSubstr("only this machine reaches 0x7f000101:4700: here 0x7f000101 is 127.0.1.1"));
  EXPECT_THAT(said("0x7f000101:4700"), Not(HasSubstr("ANYBODY")));
  EXPECT_THAT(said("0.0.0.0:4700"), HasSubstr("ANYBODY WHO REACHES 0.0.0.0:4700"));
  EXPECT_EQ(said("localhost:4700"), "");
  EXPECT_EQ(said("127.0.0.2:4700"), "");
}

}  // namespace
}  // namespace poseidon::daemon_test
