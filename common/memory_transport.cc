#include "common/memory_transport.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace poseidon {
namespace {

/// Messages one direction holds before on_written is withheld: what a socket's buffers would hold.
constexpr std::size_t kPipeCapacityMessages = 2;

}  // namespace

/// A stream: two directions and two ends. Kept alive by both handles and all pending events.
class MemoryNetwork::Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  struct Side {
    StreamHandler* handler = nullptr;  ///< null once its Stream is destroyed or has closed
    std::deque<Bytes> arrived;         ///< not yet taken by the handler
    std::size_t in_flight = 0;         ///< written to this side, not yet taken
    bool paused = false;
    bool has_closed = false;    ///< called close
    bool writer_waits = false;  ///< the other side's on_written is withheld
    Nanoseconds last_arrival{0};
    std::optional<absl::Status> close;  ///< arrives after all messages
    std::string name;
  };

  explicit Pipe(MemoryNetwork* network) : network_(network) {}

  Side& side(int i) { return sides_[static_cast<std::size_t>(i)]; }

  void write(int from, const OutgoingMessage& message) {
    Side& to = side(1 - from);
    Bytes bytes = copy(message);
    ++to.in_flight;
    network_->max_queued_ = std::max(network_->max_queued_, to.in_flight);
    if (cut_) return;  // lost; the end hears of it
    if (network_->draw(network_->faults_.cut)) {
      ++network_->cuts_;
      cut();
      return;
    }
    const int copies = network_->draw(network_->faults_.duplicate) ? 2 : 1;
    network_->duplicates_ += copies - 1;
    for (int i = 0; i < copies; ++i) schedule_arrival(1 - from, bytes, i > 0);
    if (to.in_flight < kPipeCapacityMessages) {
      confirm(from);
    } else {
      to.writer_waits = true;
    }
  }

  void resume(int i) {
    side(i).paused = false;
    post([this, i] { deliver(i); });
  }

  /// `from` ends the stream with `status`: both ends hear on_closed, the other after what was
  /// written.
  void close(int from, const absl::Status& status) {
    side(from).has_closed = true;
    Side& to = side(1 - from);
    const Nanoseconds when = std::max(network_->now() + network_->delay(), to.last_arrival);
    to.last_arrival = when;
    network_->at(when, [this, self = shared_from_this(), from, status] {
      side(1 - from).close = status;
      deliver(1 - from);
    });
    post([this, from] { end(from, absl::OkStatus()); });
  }

  void abandon(int i) {
    side(i).handler = nullptr;
    if (!cut_ && !side(i).has_closed) cut();  // what was written before a close still arrives
  }

  void cut() {
    cut_ = true;
    for (int i = 0; i < 2; ++i) {
      side(i).arrived.clear();
      network_->at(network_->now() + network_->delay(), [this, self = shared_from_this(), i] {
        end(i, absl::UnavailableError("the connection was cut"));
      });
    }
  }

  void end(int i, const absl::Status& status) {
    if (StreamHandler* handler = std::exchange(side(i).handler, nullptr)) {
      handler->on_closed(status);
    }
  }

 private:
  static Bytes copy(const OutgoingMessage& message) {
    auto memory =
        std::make_shared<std::vector<std::byte>>(message.prefix.size() + message.payload.size());
    const std::string_view prefix = message.prefix.view();
    std::transform(prefix.begin(), prefix.end(), memory->begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    std::copy(message.payload.begin(), message.payload.end(),
              memory->begin() + static_cast<std::ptrdiff_t>(message.prefix.size()));
    Bytes bytes;
    // Two pieces with an odd split: receivers must cope with any.
    const std::size_t split = memory->size() / 3;
    const absl::Span<const std::byte> all(*memory);
    bytes.pieces = {all.subspan(0, split), all.subspan(split)};
    bytes.owner = std::move(memory);
    return bytes;
  }

  void schedule_arrival(int i, const Bytes& bytes, bool repetition) {
    Side& to = side(i);
    Nanoseconds when = network_->now() + network_->delay();
    const bool overtakes = network_->draw(network_->faults_.reorder);
    if (overtakes) ++network_->reorders_;
    if (!overtakes && !repetition) when = std::max(when, to.last_arrival);
    to.last_arrival = std::max(to.last_arrival, when);
    if (repetition) ++to.in_flight;
    network_->at(when, [this, self = shared_from_this(), i, bytes] {
      if (cut_) return;
      side(i).arrived.push_back(bytes);
      deliver(i);
    });
  }

  void confirm(int i) {
    post([this, i] {
      if (!cut_ && side(i).handler != nullptr) side(i).handler->on_written();
    });
  }

  void post(std::function<void()> function) {
    network_->at(network_->now(),
                 [self = shared_from_this(), function = std::move(function)] { function(); });
  }

  void deliver(int i) {
    Side& to = side(i);
    while (!cut_ && !to.paused && to.handler != nullptr && !to.arrived.empty()) {
      const Bytes bytes = std::move(to.arrived.front());
      to.arrived.pop_front();
      --to.in_flight;
      if (to.writer_waits && to.in_flight < kPipeCapacityMessages) {
        to.writer_waits = false;
        confirm(1 - i);
      }
      if (to.handler->on_message(bytes) == ReadNext::kPause) to.paused = true;
    }
    if (to.close && to.arrived.empty()) end(i, *to.close);
  }

  MemoryNetwork* const network_;
  std::array<Side, 2> sides_;
  bool cut_ = false;
};

/// One end of a pipe as its user sees it.
class MemoryNetwork::End final : public Stream {
 public:
  End(std::shared_ptr<Pipe> pipe, int side) : pipe_(std::move(pipe)), side_(side) {}
  ~End() override { pipe_->abandon(side_); }
  void write(OutgoingMessage message) override { pipe_->write(side_, message); }
  void resume_reads() override { pipe_->resume(side_); }
  void close(const absl::Status& status) override { pipe_->close(side_, status); }
  std::string peer() const override { return pipe_->side(1 - side_).name; }

 private:
  const std::shared_ptr<Pipe> pipe_;
  const int side_;
};

class MemoryNetwork::Endpoint final : public Transport {
 public:
  Endpoint(MemoryNetwork* network, std::string name) : network_(network), name_(std::move(name)) {}

  void post(std::function<void()> function) override {
    network_->at(network_->now(), std::move(function));
  }
  void post_after(Nanoseconds delay, std::function<void()> function) override {
    network_->at(network_->now() + delay, std::move(function));
  }
  Nanoseconds now() const override { return network_->now(); }

  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override {
    auto pipe = std::make_shared<Pipe>(network_);
    pipe->side(0).handler = handler;
    pipe->side(0).name = name_;
    pipe->side(1).name = address;
    post([network = network_, pipe, address] {
      const auto listener = network->listeners_.find(address);
      if (listener == network->listeners_.end()) {
        pipe->end(0, absl::UnavailableError(absl::StrCat("nobody listens at ", address)));
        return;
      }
      pipe->side(1).handler = listener->second->on_accept(std::make_unique<End>(pipe, 1));
    });
    return std::make_unique<End>(pipe, 0);
  }

  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override {
    if (!network_->listeners_.emplace(address, acceptor).second) {
      return absl::AlreadyExistsError(absl::StrCat(address, " is in use"));
    }
    return address;
  }

 private:
  MemoryNetwork* const network_;
  const std::string name_;
};

MemoryNetwork::MemoryNetwork(std::uint64_t seed, MemoryFaults faults)
    : random_(seed), faults_(faults) {}

MemoryNetwork::~MemoryNetwork() = default;

Transport& MemoryNetwork::endpoint(const std::string& name) {
  auto& endpoint = endpoints_[name];
  if (endpoint == nullptr) endpoint = std::make_unique<Endpoint>(this, name);
  return *endpoint;
}

bool MemoryNetwork::step() {
  if (events_.empty()) return false;
  auto event = events_.extract(events_.begin());
  clock_.set(event.key().first);
  event.mapped()();
  return true;
}

void MemoryNetwork::at(Nanoseconds time, std::function<void()> function) {
  events_.emplace(std::make_pair(time, sequence_++), std::move(function));
}

bool MemoryNetwork::draw(double probability) {
  if (probability <= 0.0 || faults_drawn_ >= faults_.max_faults) return false;
  const bool hit = static_cast<double>(random_.uniform()) < probability;
  if (hit) ++faults_drawn_;
  return hit;
}

Nanoseconds MemoryNetwork::delay() {
  const auto range = static_cast<std::uint64_t>((faults_.max_delay - faults_.min_delay).count());
  return faults_.min_delay + Nanoseconds(static_cast<std::int64_t>(random_.below(range + 1)));
}

}  // namespace poseidon
