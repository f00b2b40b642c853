// The ceiling: blocking TCP sockets that only move bytes. One connection per worker and server; a
// thread per direction at the worker, one thread per connection at the server.
//
// A connection begins with the worker's rank; then, both ways, a message is a chunk's number and
// its floats, whose count both sides know from the plan. Everything is in this machine's byte
// order.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/transport/shared_sums.h"
#include "bench/transport/variant.h"
#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/daemon/daemon.h"

namespace poseidon::bench {
namespace {

/// Two chunks of the default size: both sides can work on one while the other one travels.
constexpr int kSocketBufferBytes = 4 << 20;

/// What a server's thread receives at a time before it adds: it stays in the core's cache.
constexpr std::size_t kBlockFloats = (256 << 10) / sizeof(float);

absl::Status socket_error(const char* what) {
  if (errno == EAGAIN) {
    return absl::DeadlineExceededError(absl::StrCat(what, ": the other side stands still"));
  }
  return absl::ErrnoToStatus(errno, what);
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}

  int get() const { return fd_.get(); }

  /// Before listen and connect, so that the window is negotiated for these buffers.
  absl::Status tune() const {
    const int one = 1;
    const timeval patience{.tv_sec = std::chrono::seconds(kEndTimeout).count(), .tv_usec = 0};
    const auto set = [this](int level, int name, const auto& value) {
      return ::setsockopt(fd_.get(), level, name, &value, sizeof(value)) == 0;
    };
    if (set(IPPROTO_TCP, TCP_NODELAY, one) && set(SOL_SOCKET, SO_SNDBUF, kSocketBufferBytes) &&
        set(SOL_SOCKET, SO_RCVBUF, kSocketBufferBytes) && set(SOL_SOCKET, SO_SNDTIMEO, patience) &&
        set(SOL_SOCKET, SO_RCVTIMEO, patience)) {
      return absl::OkStatus();
    }
    return socket_error("setsockopt");
  }

  absl::Status send(const void* data, std::size_t size, int flags = 0) const {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t sent = ::send(fd_.get(), at, size, flags | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return socket_error("send");
      at += sent;
      size -= static_cast<std::size_t>(sent);
    }
    return absl::OkStatus();
  }

  absl::Status send_chunk(ChunkId chunk, std::span<const float> floats) const {
    const std::uint32_t number = chunk.value();
    POSEIDON_RETURN_IF_ERROR(send(&number, sizeof(number), MSG_MORE));
    return send(floats.data(), floats.size_bytes());
  }

  absl::Status receive(void* data, std::size_t size) const {
    POSEIDON_ASSIGN_OR_RETURN(const bool received, receive_or_end(data, size));
    return received ? absl::OkStatus() : absl::UnavailableError("the other side closed");
  }

  /// False: the other side closed before the first byte.
  absl::StatusOr<bool> receive_or_end(void* data, std::size_t size) const {
    char* at = static_cast<char*>(data);
    std::size_t got = 0;
    while (got < size) {
      const ssize_t n = ::recv(fd_.get(), at + got, size - got, MSG_WAITALL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return socket_error("recv");
      if (n == 0 && got == 0) return false;
      if (n == 0) return absl::UnavailableError("the other side closed in the middle");
      got += static_cast<std::size_t>(n);
    }
    return true;
  }

 private:
  Descriptor fd_;
};

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class RawServer final : public ServerEnd {
 public:
  absl::StatusOr<std::string> listen() override {
    POSEIDON_RETURN_IF_ERROR(listener_.tune());
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.get(), generic, size) != 0 || ::listen(listener_.get(), SOMAXCONN) != 0 ||
        ::getsockname(listener_.get(), generic, &size) != 0) {
      return socket_error("listen");
    }
    return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }

  absl::Status serve(const Plan& plan, ServerIndex self) override {
    sums_.emplace(plan, self);
    for (std::uint32_t i = 0; i < plan.workers(); ++i) {
      // The thread accepts, so that serve() returns before a client connects.
      threads_.emplace_back([this] {
        if (const absl::Status status = serve_one(); !status.ok()) give_up(status);
      });
    }
    return absl::OkStatus();
  }

 private:
  absl::Status serve_one() {
    const Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) return socket_error("accept");
    POSEIDON_RETURN_IF_ERROR(socket.tune());
    std::uint32_t rank = 0;
    POSEIDON_RETURN_IF_ERROR(socket.receive(&rank, sizeof(rank)));
    Contributor contributor(&*sums_, WorkerRank(rank));
    std::vector<float> block(kBlockFloats);
    // The first contribution is received into the accumulator itself: no faster sum is possible.
    const auto take = [&](std::span<float> sum, bool first) -> absl::Status {
      if (first) return socket.receive(sum.data(), sum.size_bytes());
      while (!sum.empty()) {
        const std::span<float> part = std::span(block).first(std::min(block.size(), sum.size()));
        POSEIDON_RETURN_IF_ERROR(socket.receive(part.data(), part.size_bytes()));
        add_floats(part, sum.first(part.size()));
        sum = sum.subspan(part.size());
      }
      return absl::OkStatus();
    };
    const auto send = [&](ChunkId chunk, std::span<const float> sum) {
      return socket.send_chunk(chunk, sum);
    };
    while (true) {
      std::uint32_t number = 0;
      POSEIDON_ASSIGN_OR_RETURN(const bool more, socket.receive_or_end(&number, sizeof(number)));
      if (!more) return absl::OkStatus();
      const ChunkId chunk(number);
      if (sums_->elements(chunk) == 0) {
        return absl::DataLossError(absl::StrCat("chunk ", number, " is not this server's"));
      }
      POSEIDON_RETURN_IF_ERROR(contributor.contribute(chunk, take, send));
    }
  }

  const Socket listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::optional<SharedSums> sums_;
  std::vector<std::jthread> threads_;  ///< they end when the workers close
};

class RawWorker final : public WorkerEnd {
 public:
  explicit RawWorker(const WorkerContext& context)
      : context_(context), of_server_(context.plan->servers()) {
    const std::vector<ChunkPlace>& chunks = context_.workload->chunks();
    for (std::uint32_t i = 0; i < chunks.size(); ++i) {
      of_server_[chunks[i].server.value()].emplace_back(i);
    }
  }

  absl::Status connect() override {
    for (const std::string& text : context_.plan->server_addresses) {
      POSEIDON_ASSIGN_OR_RETURN(const HostPort server, parse_host_port(text, PortZero::kRefused));
      Socket& socket = sockets_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      POSEIDON_RETURN_IF_ERROR(socket.tune());
      const sockaddr_in address = loopback(server.port);
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
          0) {
        return socket_error("connect");
      }
      const std::uint32_t rank = context_.rank.value();
      POSEIDON_RETURN_IF_ERROR(socket.send(&rank, sizeof(rank)));
    }
    return absl::OkStatus();
  }

  absl::Status iterate(Iteration /*iteration*/) override {
    std::vector<std::future<absl::Status>> halves;
    for (std::size_t s = 0; s < sockets_.size(); ++s) {
      halves.push_back(std::async(std::launch::async, [this, s] { return send_all(s); }));
      halves.push_back(std::async(std::launch::async, [this, s] { return receive_all(s); }));
    }
    absl::Status status;
    for (auto& half : halves) status.Update(half.get());
    return status;
  }

 private:
  absl::Status send_all(std::size_t server) {
    for (const ChunkId chunk : of_server_[server]) {
      const ChunkPlace& place = context_.workload->chunks()[chunk.value()];
      POSEIDON_RETURN_IF_ERROR(sockets_[server].send_chunk(
          chunk,
          std::as_const(*context_.workload).gradients().subspan(place.begin, place.elements)));
    }
    return absl::OkStatus();
  }

  absl::Status receive_all(std::size_t server) {
    for (std::size_t i = 0; i < of_server_[server].size(); ++i) {
      std::uint32_t number = 0;
      POSEIDON_RETURN_IF_ERROR(sockets_[server].receive(&number, sizeof(number)));
      if (number >= context_.workload->chunks().size()) {
        return absl::DataLossError(absl::StrCat("there is no chunk ", number));
      }
      const ChunkPlace& place = context_.workload->chunks()[number];
      const std::span<float> to = context_.workload->results().subspan(place.begin, place.elements);
      POSEIDON_RETURN_IF_ERROR(sockets_[server].receive(to.data(), to.size_bytes()));
    }
    return absl::OkStatus();
  }

  const WorkerContext context_;
  std::vector<std::vector<ChunkId>> of_server_;
  std::vector<Socket> sockets_;  ///< by ServerIndex
};

}  // namespace

std::unique_ptr<ServerEnd> make_raw_server(const std::shared_ptr<Security>& /*security*/) {
  return std::make_unique<RawServer>();
}
std::unique_ptr<WorkerEnd> make_raw_worker(const WorkerContext& context) {
  return std::make_unique<RawWorker>(context);
}

}  // namespace poseidon::bench
