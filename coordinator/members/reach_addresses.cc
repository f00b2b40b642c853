#include "coordinator/members/reach_addresses.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>

#include "absl/strings/str_format.h"
#include "common/base/descriptor.h"
#include "common/security/connection_door.h"

namespace poseidon {
namespace {

constexpr int kLookMs = 100;  ///< how often `stop` is looked at
/// Of one host's addresses.
constexpr std::size_t kMostPerHost = 4;

absl::Status failed_with(int error) {
  return absl::UnavailableError(std::generic_category().message(error));
}

/// One connection that is being made.
struct Attempt {
  std::size_t index = 0;  ///< of the address
  Descriptor socket;
};

using Answers = std::vector<std::optional<absl::Status>>;

std::vector<Attempt> begin(const std::vector<std::string>& addresses, Answers& answers) {
  std::vector<Attempt> attempts;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto found = look_up_address(addresses[i], LookUp::kNames);
    if (!found.ok()) {
      answers[i] = absl::UnavailableError(found.status().message());
      continue;
    }
    for (std::size_t a = 0; a < std::min(found->size(), kMostPerHost); ++a) {
      Descriptor socket = begin_to_connect((*found)[a]);
      if (socket.is_open()) {
        attempts.push_back({.index = i, .socket = std::move(socket)});
      } else if (!answers[i]) {
        answers[i] = failed_with(errno);
      }
    }
  }
  return attempts;
}

/// Takes the answers of those that are connected or refused, and drops these attempts.
void take_answers(const std::vector<pollfd>& polled, std::vector<Attempt>& attempts,
                  Answers& answers) {
  for (std::size_t i = attempts.size(); i-- > 0;) {
    if (polled[i].revents == 0) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(attempts[i].socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    std::optional<absl::Status>& answer = answers[attempts[i].index];
    if (error == 0) {
      answer = absl::OkStatus();
    } else if (!answer) {
      answer = failed_with(error);
    }
    attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

std::vector<absl::Status> reach_addresses(const std::vector<std::string>& addresses,
                                          Nanoseconds patience, const std::atomic<bool>& stop) {
  Answers answers(addresses.size());
  std::vector<Attempt> attempts = begin(addresses, answers);
  const SystemClock clock;
  const Nanoseconds deadline = clock.now() + patience;
  while (!attempts.empty() && !stop && clock.now() < deadline) {
    std::vector<pollfd> polled;
    for (const Attempt& attempt : attempts) polled.push_back({attempt.socket.get(), POLLOUT, 0});
    if (::poll(polled.data(), polled.size(), kLookMs) > 0) take_answers(polled, attempts, answers);
  }
  std::vector<absl::Status> result;
  for (const auto& answer : answers) {
    result.push_back(answer.value_or(
        absl::UnavailableError(absl::StrFormat("no answer within %g s", seconds(patience)))));
  }
  return result;
}

}  // namespace poseidon
