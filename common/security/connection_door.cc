#include "common/security/connection_door.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

/// Files that the process needs for other things.
constexpr std::size_t kReservedFiles = 256;
constexpr int kBacklog = 1024;
/// How long sent bytes may stay unacknowledged; gRPC's own value.
constexpr unsigned kUserTimeoutMs = 20000;
/// At the limit, how often it is looked whether connections have ended.
constexpr std::chrono::milliseconds kLookInterval{50};
/// After a failure to accept that is not the connection's own fault.
constexpr int kPauseMs = 50;
/// Connections that are accepted before those that have come before are looked at again.
constexpr int kMostAtOnce = 256;

/// Half of the process's limit of open files when that is less than the reserve.
std::size_t files_for_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kReservedFiles;
  const auto files = static_cast<std::size_t>(limit.rlim_cur);
  return files > 2 * kReservedFiles ? files - kReservedFiles : files / 2;
}

std::string text_of(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(),
                    nullptr, 0, NI_NUMERICHOST) != 0) {
    return "unknown";
  }
  return host.data();
}

struct Accepted {
  int socket;   // below 0: none, errno says why
  ino_t inode;  // 0 when the kernel does not tell
  sockaddr_storage address;
  socklen_t address_bytes;
};

/// In a function of its own because of ThreadSanitizer (cmake/sanitizers/tsan.supp): who gets the
/// socket closes it unseen.
Accepted accept_to_hand_over(int listener) {
  Accepted accepted{
      .socket = -1, .inode = 0, .address = {}, .address_bytes = sizeof(sockaddr_storage)};
  accepted.socket = ::accept4(listener, reinterpret_cast<sockaddr*>(&accepted.address),
                              &accepted.address_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
  struct stat is {};
  if (accepted.socket >= 0 && ::fstat(accepted.socket, &is) == 0) accepted.inode = is.st_ino;
  return accepted;
}

struct Place {
  std::string host;
  int port = 0;
};

absl::StatusOr<Place> parse(const std::string& address) {
  Place place;
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &place.port) ||
      place.port < 0 || place.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("address \"", address, "\": HOST:PORT wanted"));
  }
  place.host = address.substr(0, colon);
  if (place.host.size() > 2 && place.host.front() == '[') {
    place.host = place.host.substr(1, place.host.size() - 2);
  }
  return place;
}

absl::Status refused_to_listen(const std::string& address) {
  const int error = errno;
  if (error == EADDRINUSE) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", address,
                                                 ": the port is already in use by another process; "
                                                 "stop it or choose another"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", address));
}

/// Closed with errno set when it cannot be.
Descriptor listen_on(const sockaddr* address, socklen_t size, bool both_families) {
  Descriptor socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return {};
  const int on = 1;
  const int only_6 = both_families ? 0 : 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address->sa_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_6, sizeof(only_6));
  }
  if (::bind(socket.get(), address, size) != 0 || ::listen(socket.get(), kBacklog) != 0) return {};
  return socket;
}

void set_options(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
}

int patience_until(Nanoseconds deadline, Nanoseconds now) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - now).count();
  return static_cast<int>(std::max<std::int64_t>(0, left));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Of a host and port; the error is getaddrinfo's.
int look_up(const std::string& host, int port, int flags, Addresses& found) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &first);
  found.reset(first);
  return error;
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionDoor>> ConnectionDoor::open(const std::string& address,
                                                                     DoorLimits limits) {
  const absl::StatusOr<Place> place = parse(address);
  if (!place.ok()) return place.status();
  // As far as the limit of open files allows; one address never gets all of them.
  if (const std::size_t most = files_for_connections(); limits.connections > most) {
    limits.connections = most;
    limits.per_address = std::min(limits.per_address, std::max<std::size_t>(1, most / 2));
  }
  std::unique_ptr<ConnectionDoor> door(new ConnectionDoor(limits));
  door->port_ = place->port;

  const bool is_wildcard = place->host.empty() || place->host == "0.0.0.0" || place->host == "::";
  if (is_wildcard) {  // one socket for both families, where there are two
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<std::uint16_t>(place->port));
    Descriptor socket = listen_on(reinterpret_cast<const sockaddr*>(&any), sizeof(any), true);
    if (!socket.is_open() && errno == EADDRINUSE) return refused_to_listen(address);
    if (socket.is_open()) door->listeners_.push_back(std::move(socket));
  }
  if (door->listeners_.empty()) {
    Addresses found(nullptr, &::freeaddrinfo);
    const int error =
        look_up(is_wildcard ? "0.0.0.0" : place->host, place->port, AI_PASSIVE, found);
    if (error != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on ", address, ": ", ::gai_strerror(error)));
    }
    for (addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
      // A free port was asked for: all addresses of the host have the same.
      const auto port = htons(static_cast<std::uint16_t>(door->port_));
      if (each->ai_family == AF_INET6) {
        reinterpret_cast<sockaddr_in6*>(each->ai_addr)->sin6_port = port;
      } else {
        reinterpret_cast<sockaddr_in*>(each->ai_addr)->sin_port = port;
      }
      Descriptor socket = listen_on(each->ai_addr, each->ai_addrlen, false);
      // A host's other address may be of a family that this machine does not have.
      if (!socket.is_open() && (errno == EADDRINUSE || each->ai_next == nullptr) &&
          (errno == EADDRINUSE || door->listeners_.empty())) {
        return refused_to_listen(address);
      }
      if (!socket.is_open()) continue;
      door->port_ = port_of(socket.get());
      door->listeners_.push_back(std::move(socket));
    }
  }
  door->port_ = port_of(door->listeners_.front().get());
  door->wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!door->wake_.is_open()) return absl::ErrnoToStatus(errno, "eventfd");
  return door;
}

ConnectionDoor::~ConnectionDoor() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  POSEIDON_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one),
                 "an eventfd takes a count");
  thread_.join();
}

void ConnectionDoor::start(Take take, Refuse refuse, Take take_stream) {
  POSEIDON_CHECK(!thread_.joinable(), "started once");
  take_ = std::move(take);
  refuse_ = std::move(refuse);
  take_stream_ = std::move(take_stream);
  thread_ = std::thread([this] { run(); });
}

void ConnectionDoor::run() {
  std::vector<pollfd> waiting;
  while (true) {
    waiting.assign(1, {wake_.get(), POLLIN, 0});
    for (const Descriptor& listener : listeners_) waiting.push_back({listener.get(), POLLIN, 0});
    for (const Arriving& arriving : arriving_) waiting.push_back({arriving.socket, POLLIN, 0});
    // No deadline when no connection is in its handshake: this thread lives as long as the port is
    // open.
    const int patience_ms =
        arriving_.empty() ? -1 : patience_until(arriving_.front().deadline, clock_.now());
    if (::poll(waiting.data(), waiting.size(), patience_ms) < 0 && errno != EINTR) break;
    if (waiting.front().revents != 0) break;
    std::size_t i = 1 + listeners_.size();
    for (auto arriving = arriving_.begin(); arriving != arriving_.end(); ++i) {
      const bool is_late = arriving->deadline <= clock_.now();
      if (is_late) turn_away(*arriving);
      const bool is_done = is_late || (waiting[i].revents != 0 && hear(*arriving));
      arriving = is_done ? arriving_.erase(arriving) : std::next(arriving);
    }
    for (i = 1; i <= listeners_.size(); ++i) {
      if (waiting[i].revents != 0) accept_some(waiting[i].fd);
    }
  }
  for (const Arriving& arriving : arriving_) ::close(arriving.socket);
}

/// Whether it is known how the connection comes in, or that it does not.
bool ConnectionDoor::hear(Arriving& arriving) {
  if (arriving.heard == 0) {
    char first = 0;
    const ssize_t peeked = ::recv(arriving.socket, &first, 1, MSG_PEEK);
    if (peeked < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    // gRPC notices a peer that has already closed its connection.
    if (peeked <= 0 || first != kGreeting.front()) {
      take_(arriving.socket);
      return true;
    }
  }
  const ssize_t heard = ::recv(arriving.socket, arriving.greeting.data() + arriving.heard,
                               arriving.greeting.size() - arriving.heard, 0);
  if (heard < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (heard > 0) arriving.heard += static_cast<std::size_t>(heard);
  if (heard > 0 && arriving.heard < arriving.greeting.size()) return false;
  if (heard <= 0 || arriving.greeting != kGreeting) {
    turn_away(arriving);
  } else {
    take_stream_(arriving.socket);
  }
  return true;
}

void ConnectionDoor::turn_away(const Arriving& arriving) {
  refuse_(arriving.peer, Refusal::kNoGreeting);
  ::close(arriving.socket);
}

void ConnectionDoor::accept_some(int listener) {
  for (int i = 0; i < kMostAtOnce; ++i) {
    const auto [socket, inode, address, address_bytes] = accept_to_hand_over(listener);
    if (socket < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // No files or no memory for one more: others will close theirs.
      if (errno != EAGAIN) {
        pollfd wake{wake_.get(), POLLIN, 0};
        ::poll(&wake, 1, kPauseMs);
      }
      return;
    }
    const std::string peer = text_of(address, address_bytes);
    if (!has_room(peer) || inode == 0) {
      refuse_(peer, Refusal::kTooMany);  // counted when the peer knows of it
      ::close(socket);
      continue;
    }
    set_options(socket);
    // Whoever had this number before has closed it.
    if (const auto before = open_.find(socket); before != open_.end()) {
      count_out(before->second.peer);
    }
    open_[socket] = {.inode = inode, .peer = peer};
    ++of_peer_[peer];
    if (take_stream_ != nullptr) {
      arriving_.push_back(
          {.socket = socket, .peer = peer, .deadline = clock_.now() + limits_.greeting});
    } else {
      take_(socket);
    }
  }
}

bool ConnectionDoor::has_room(const std::string& peer) {
  const auto room = [&] {
    const auto found = of_peer_.find(peer);
    if (found == of_peer_.end()) {
      const std::size_t kept = std::min(limits_.kept_for_known, limits_.connections / 4);
      return open_.size() < limits_.connections - kept;
    }
    return open_.size() < limits_.connections && found->second < limits_.per_address;
  };
  if (room()) return true;
  if (clock_.now() - looked_ < kLookInterval) return false;
  forget_closed();
  looked_ = clock_.now();
  return room();
}

void ConnectionDoor::forget_closed() {
  std::erase_if(open_, [this](const auto& entry) {
    struct stat is {};
    const bool closed = ::fstat(entry.first, &is) != 0 || is.st_ino != entry.second.inode;
    if (closed) count_out(entry.second.peer);
    return closed;
  });
}

void ConnectionDoor::count_out(const std::string& peer) {
  const auto found = of_peer_.find(peer);
  if (found != of_peer_.end() && --found->second == 0) of_peer_.erase(found);
}

absl::StatusOr<std::vector<SocketAddress>> look_up_address(const std::string& address, LookUp how) {
  POSEIDON_ASSIGN_OR_RETURN(const Place place, parse(address));
  Addresses found(nullptr, &::freeaddrinfo);
  const int flags = how == LookUp::kNumbersOnly ? AI_NUMERICHOST : AI_ADDRCONFIG;
  if (const int error = look_up(place.host, place.port, flags, found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot connect to ", address, ": ", ::gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    SocketAddress& copy = addresses.emplace_back();
    copy.bytes = std::min<socklen_t>(each->ai_addrlen, sizeof(copy.storage));
    std::memcpy(&copy.storage, each->ai_addr, copy.bytes);
  }
  return addresses;
}

Descriptor begin_to_connect(const SocketAddress& address) {
  Descriptor made(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.is_open()) return made;
  set_options(made.get());
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(made.get(), generic, address.bytes) == 0 || errno == EINPROGRESS) return made;
  const int error = errno;
  made.close();
  errno = error;
  return made;
}

}  // namespace poseidon
