#include "common/transport/memory_transport.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

/// Messages that one direction holds before on_written is withheld, like a socket's buffers.
constexpr std::size_t kPipeCapacityMessages = 2;

}  // namespace

/// A process; faults are applied to it here.
class MemoryNetwork::Endpoint final : public Transport {
 public:
  Endpoint(MemoryNetwork* network, std::string name) : network_(network), name_(std::move(name)) {}

  void post(std::function<void()> function) override {
    network_->at(network_->now(), this, std::move(function));
  }
  void post_after(Nanoseconds delay, std::function<void()> function) override {
    network_->at(network_->now() + delay, this, std::move(function));
  }
  Nanoseconds now() const override { return network_->now(); }
  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override;
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override {
    if (!network_->listeners_.emplace(address, Listener{acceptor, this}).second) {
      return absl::AlreadyExistsError(absl::StrCat(address, " is in use"));
    }
    return address;
  }

  const std::string& name() const { return name_; }
  void run(std::function<void()> function) {
    if (dead) return;
    if (frozen) {
      parked.push_back(std::move(function));
    } else {
      function();
    }
  }

  bool dead = false;
  bool frozen = false;
  std::uint64_t freezes = 0;
  std::vector<std::function<void()>> parked;  ///< while frozen, in order

 private:
  MemoryNetwork* const network_;
  const std::string name_;
};

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
    std::string name;                   ///< as the other side sees it
    Endpoint* of = nullptr;             ///< null: not accepted yet
  };

  Pipe(MemoryNetwork* network, bool in_order) : network_(network), in_order_(in_order) {}

  Side& side(int i) { return sides_[static_cast<std::size_t>(i)]; }
  const Side& side(int i) const { return sides_[static_cast<std::size_t>(i)]; }
  bool is_of(const Endpoint& endpoint) const {
    return side(0).of == &endpoint || side(1).of == &endpoint;
  }

  void write(int from, const OutgoingMessage& message) {
    Side& to = side(1 - from);
    Bytes bytes = copy(message);
    ++to.in_flight;
    network_->max_queued_ = std::max(network_->max_queued_, to.in_flight);
    if (cut_) return;  // lost; the end is told
    if (network_->draw(network_->faults_.cut)) {
      ++network_->cuts_;
      cut();
      return;
    }
    if (network_->loss_ && network_->loss_(side(1).name, from == 1, bytes)) {
      --to.in_flight;
      confirm(from);
      return;
    }
    const int copies = !in_order_ && network_->draw(network_->faults_.duplicate) ? 2 : 1;
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
    post(i, [this, i] { deliver(i); });
  }

  /// `from` ends the stream with `status`: both ends get on_closed, the other end after all
  /// messages written before.
  void close(int from, const absl::Status& status) {
    side(from).has_closed = true;
    Side& to = side(1 - from);
    const Nanoseconds when = std::max(network_->now() + network_->delay(), to.last_arrival);
    to.last_arrival = when;
    arrive(when, 1 - from, [this, from, status] {
      side(1 - from).close = status;
      deliver(1 - from);
    });
    post(from, [this, from] { end(from, absl::OkStatus()); });
  }

  void abandon(int i) {
    side(i).handler = nullptr;
    if (!cut_ && !side(i).has_closed) cut();  // messages written before a close still arrive
  }

  void cut() {
    cut_ = true;
    for (int i = 0; i < 2; ++i) {
      side(i).arrived.clear();
      arrive(network_->now() + network_->delay(), i,
             [this, i] { end(i, absl::UnavailableError("the connection was cut")); });
    }
  }

  /// Each end finds out by itself.
  void time_out() {
    cut_ = true;
    for (int i = 0; i < 2; ++i) {
      side(i).arrived.clear();
      post(i, [this, i] { end(i, absl::UnavailableError("the other side is silent")); });
    }
  }

  /// Something reaches side i, unless the network holds it back.
  void arrive(Nanoseconds when, int i, std::function<void()> function) {
    network_->at(when, nullptr,
                 [this, self = shared_from_this(), i, function = std::move(function)]() mutable {
                   if (network_->parted(*this)) {
                     held_back_.emplace_back(i, std::move(function));
                   } else {
                     happen(i, std::move(function));
                   }
                 });
  }
  /// What was held back comes, before all that follows.
  void joined() {
    const auto self = shared_from_this();
    for (auto& [i, function] : std::exchange(held_back_, {})) happen(i, std::move(function));
  }

  void end(int i, const absl::Status& status) {
    if (StreamHandler* handler = std::exchange(side(i).handler, nullptr)) {
      handler->on_closed(status);
    }
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
    const bool overtakes = !in_order_ && network_->draw(network_->faults_.reorder);
    if (overtakes) ++network_->reorders_;
    if (!overtakes && !repetition) when = std::max(when, to.last_arrival);
    to.last_arrival = std::max(to.last_arrival, when);
    if (repetition) ++to.in_flight;
    arrive(when, i, [this, i, bytes] {
      if (cut_) return;
      side(i).arrived.push_back(bytes);
      deliver(i);
    });
  }

  void happen(int i, std::function<void()> function) {
    if (Endpoint* const of = side(i).of) {
      of->run([self = shared_from_this(), function = std::move(function)] { function(); });
    } else {
      function();
    }
  }

  void confirm(int i) {
    post(i, [this, i] {
      if (!cut_ && side(i).handler != nullptr) side(i).handler->on_written();
    });
  }

  void post(int i, std::function<void()> function) {
    network_->at(network_->now(), side(i).of,
                 [self = shared_from_this(), function = std::move(function)] { function(); });
  }

  MemoryNetwork* const network_;
  const bool in_order_;
  std::array<Side, 2> sides_;
  std::vector<std::pair<int, std::function<void()>>> held_back_;  ///< and for which side
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

std::unique_ptr<Stream> MemoryNetwork::Endpoint::connect(const std::string& address,
                                                         StreamHandler* handler) {
  auto pipe = std::make_shared<Pipe>(network_, network_->in_order_.contains(address));
  pipe->side(0).handler = handler;
  pipe->side(0).name = name_;
  pipe->side(0).of = this;
  pipe->side(1).name = address;
  network_->pipes_.push_back(pipe);
  post([this, pipe, address] {
    const auto listener = network_->listeners_.find(address);
    if (listener == network_->listeners_.end()) {
      pipe->end(0, absl::UnavailableError(absl::StrCat("no listener at ", address)));
      return;
    }
    pipe->side(1).of = listener->second.of;
    network_->at(now(), listener->second.of, [this, pipe, address] {
      const auto there = network_->listeners_.find(address);
      if (there == network_->listeners_.end()) return;
      if (network_->parted(*pipe)) {
        pipe->time_out();
        return;
      }
      pipe->side(1).handler = there->second.acceptor->on_accept(std::make_unique<End>(pipe, 1));
      pipe->deliver(1);  // what came before
    });
  });
  return std::make_unique<End>(pipe, 0);
}

MemoryNetwork::MemoryNetwork(std::uint64_t seed, MemoryFaults faults)
    : random_(seed), faults_(faults) {}

MemoryNetwork::~MemoryNetwork() = default;

MemoryNetwork::Endpoint& MemoryNetwork::named(const std::string& name) {
  auto& endpoint = endpoints_[name];
  if (endpoint == nullptr) endpoint = std::make_unique<Endpoint>(this, name);
  return *endpoint;
}

Transport& MemoryNetwork::endpoint(const std::string& name) { return named(name); }

bool MemoryNetwork::step() {
  if (events_.empty()) return false;
  auto event = events_.extract(events_.begin());
  clock_.set(event.key().first);
  if (Endpoint* const of = event.mapped().of) {
    of->run(std::move(event.mapped().function));
  } else {
    event.mapped().function();
  }
  return true;
}

void MemoryNetwork::at(Nanoseconds time, Endpoint* of, std::function<void()> function) {
  events_.emplace(std::make_pair(time, sequence_++), Event{of, std::move(function)});
}

// ---- faults of processes ----

std::vector<std::shared_ptr<MemoryNetwork::Pipe>> MemoryNetwork::pipes() {
  std::vector<std::shared_ptr<Pipe>> alive;
  std::erase_if(pipes_, [&alive](const std::weak_ptr<Pipe>& pipe) {
    if (auto here = pipe.lock()) alive.push_back(std::move(here));
    return pipe.expired();
  });
  return alive;
}

/// After the keepalive, if it is still so.
void MemoryNetwork::break_later(const std::function<bool(const Pipe&)>& which,
                                const std::function<bool()>& still) {
  at(now() + faults_.keepalive, nullptr, [this, which, still] {
    if (!still()) return;
    for (const auto& pipe : pipes()) {
      if (which(*pipe)) pipe->time_out();
    }
  });
}

void MemoryNetwork::kill(const std::string& endpoint, bool silently) {
  Endpoint& dead = named(endpoint);
  dead.dead = true;
  dead.parked.clear();
  std::erase_if(listeners_, [&dead](const auto& listener) { return listener.second.of == &dead; });
  for (const auto& pipe : pipes()) {
    if (!pipe->is_of(dead)) continue;
    if (silently) {
      at(now() + faults_.keepalive, nullptr, [pipe] { pipe->time_out(); });
    } else {
      pipe->cut();
    }
  }
}

void MemoryNetwork::freeze(const std::string& endpoint) {
  Endpoint& frozen = named(endpoint);
  if (frozen.frozen) return;
  frozen.frozen = true;
  const std::uint64_t which = ++frozen.freezes;
  break_later([&frozen](const Pipe& pipe) { return pipe.is_of(frozen); },
              [&frozen, which] { return frozen.frozen && frozen.freezes == which; });
}

void MemoryNetwork::thaw(const std::string& endpoint) {
  Endpoint& thawed = named(endpoint);
  thawed.frozen = false;
  for (auto& function : std::exchange(thawed.parked, {})) thawed.run(std::move(function));
}

MemoryNetwork::Pair MemoryNetwork::pair_of(const std::string& one, const std::string& other) {
  return {std::min(one, other), std::max(one, other)};
}

bool MemoryNetwork::parted(const Pipe& pipe) const {
  if (parted_.empty() || pipe.side(0).of == nullptr || pipe.side(1).of == nullptr) return false;
  return parted_.contains(pair_of(pipe.side(0).of->name(), pipe.side(1).of->name()));
}

void MemoryNetwork::part(const std::string& one, const std::string& other) {
  const Pair pair = pair_of(one, other);
  const std::uint64_t which = ++partings_;
  if (!parted_.emplace(pair, which).second) return;
  break_later(
      [pair](const Pipe& pipe) {
        return pipe.side(0).of != nullptr && pipe.side(1).of != nullptr &&
               pair_of(pipe.side(0).of->name(), pipe.side(1).of->name()) == pair;
      },
      [this, pair, which] {
        const auto there = parted_.find(pair);
        return there != parted_.end() && there->second == which;
      });
}

void MemoryNetwork::join(const std::string& one, const std::string& other) {
  parted_.erase(pair_of(one, other));
  for (const auto& pipe : pipes()) {
    if (!parted(*pipe)) pipe->joined();
  }
}

// ---- dice ----

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
