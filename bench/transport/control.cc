#include "bench/transport/control.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/status/status.h"

namespace poseidon::bench {
namespace {

constexpr std::size_t kMaxLineBytes = 64 << 10;  // 64 addresses are a few KiB

}  // namespace

absl::StatusOr<std::pair<ControlLine, Descriptor>> ControlLine::make_pair() {
  std::array<int, 2> ends{};
  // SEQPACKET: a message is a message.
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  ControlLine ours{Descriptor(ends[0])};
  Descriptor theirs(ends[1]);
  if (::fcntl(theirs.get(), F_SETFD, 0) != 0) return absl::ErrnoToStatus(errno, "fcntl");
  return std::pair(std::move(ours), std::move(theirs));
}

absl::Status ControlLine::send(const nlohmann::json& message) const {
  const std::string text = message.dump();
  if (::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) {
    return absl::UnavailableError("the control line is closed");
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> ControlLine::receive(Nanoseconds patience) const {
  const SystemClock clock;
  const Nanoseconds end = clock.now() + patience;
  pollfd events{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<Milliseconds>(end - clock.now()).count();
    if (left <= 0) return absl::DeadlineExceededError("no answer in time");
    const int ready = ::poll(&events, 1, static_cast<int>(std::min<std::int64_t>(left, 1'000'000)));
    if (ready > 0) break;
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
  }
  std::string text(kMaxLineBytes, '\0');
  const ssize_t size = ::recv(socket_.get(), text.data(), text.size(), 0);
  if (size <= 0) return absl::UnavailableError("the control line is closed");
  text.resize(static_cast<std::size_t>(size));
  nlohmann::json message = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (message.is_discarded()) return absl::DataLossError("not JSON on the control line");
  return message;
}

}  // namespace poseidon::bench
