#pragma once

// The in-memory twin of the network: any number of nodes in one thread, on a manual clock, with
// every delay, cut, repetition and change of order drawn from one seed. The same seed gives the
// same run. The test may kill, freeze and partition nodes.
//
// Called by: tests and simulations. Calls: the handlers of common/transport/transport.h.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/transport/transport.h"

namespace poseidon {

/// The faults of a MemoryNetwork. All zero: a perfect network with a fixed delay.
struct MemoryFaults {
  Nanoseconds min_delay{Milliseconds(1)};
  Nanoseconds max_delay{Milliseconds(1)};  ///< of each message, uniform
  /// Probabilities per message. A cut breaks the stream: messages under way in both directions are
  /// lost, and each end gets on_closed at its own time.
  double cut = 0.0;
  double duplicate = 0.0;  ///< delivered twice
  double reorder = 0.0;    ///< may overtake messages before it on the same stream
  /// A real network stops failing sooner or later: after this many faults no more are drawn.
  std::int64_t max_faults = 1000;
  /// A peer that is silent for this long counts as dead, as with a real transport's keepalive.
  Nanoseconds keepalive{Milliseconds(10000)};
};

/// Several nodes and the events between them. One thread. Outlives its endpoints' streams.
class MemoryNetwork {
 public:
  MemoryNetwork(std::uint64_t seed, MemoryFaults faults);
  ~MemoryNetwork();

  /// A process's transport. Lives as long as the network; a new process has a new name.
  Transport& endpoint(const std::string& name);
  /// Streams to this address repeat no message and change no order; they may be cut.
  void keep_order(const std::string& address) { in_order_.insert(address); }

  /// Ends the process: none of its events run any more and it listens no longer. `silently`: its
  /// machine fails, too, so peers notice only by their keepalive.
  void kill(const std::string& endpoint, bool silently);
  /// Suspends the process: its events wait for thaw.
  void freeze(const std::string& endpoint);
  void thaw(const std::string& endpoint);
  /// Cuts the network between the two, in both directions. Sent messages wait, and after the
  /// keepalive the streams break.
  void part(const std::string& one, const std::string& other);
  void join(const std::string& one, const std::string& other);

  /// Asked for each message to (or, where `answers`, from) the listener at `address`: true loses
  /// it, although its stream stays whole, as only an error in a program would. Null: loses none.
  using Loss = std::function<bool(const std::string& address, bool answers, const Bytes& message)>;
  void set_loss(Loss loss) { loss_ = std::move(loss); }

  /// Moves the clock to the next event and runs it; false when there is none.
  bool step();
  Nanoseconds now() const { return clock_.now(); }

  std::int64_t cuts() const { return cuts_; }
  std::int64_t duplicates() const { return duplicates_; }
  std::int64_t reorders() const { return reorders_; }
  /// The most messages so far that were written and not yet received in one direction of a stream.
  std::size_t max_queued_messages() const { return max_queued_; }

 private:
  class Endpoint;
  class Pipe;
  class End;
  struct Event {
    Endpoint* of = nullptr;  ///< null: the network's own
    std::function<void()> function;
  };
  struct Listener {
    Acceptor* acceptor = nullptr;
    Endpoint* of = nullptr;
  };
  using Pair = std::pair<std::string, std::string>;

  void at(Nanoseconds time, Endpoint* of, std::function<void()> function);
  Endpoint& named(const std::string& name);
  void break_later(const std::function<bool(const Pipe&)>& which,
                   const std::function<bool()>& still);
  std::vector<std::shared_ptr<Pipe>> pipes();
  bool parted(const Pipe& pipe) const;
  static Pair pair_of(const std::string& one, const std::string& other);
  bool draw(double probability);
  Nanoseconds delay();

  ManualClock clock_;
  SplitMix64 random_;
  const MemoryFaults faults_;
  std::uint64_t sequence_ = 0;
  /// Events by (time, order of creation).
  std::map<std::pair<Nanoseconds, std::uint64_t>, Event> events_;
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints_;
  std::map<std::string, Listener> listeners_;  ///< by address
  std::set<std::string> in_order_;
  std::map<Pair, std::uint64_t> parted_;  ///< and the number of the partition
  std::uint64_t partings_ = 0;
  std::vector<std::weak_ptr<Pipe>> pipes_;
  std::int64_t faults_drawn_ = 0, cuts_ = 0, duplicates_ = 0, reorders_ = 0;
  std::size_t max_queued_ = 0;
  Loss loss_;
};

}  // namespace poseidon
