#pragma once

// The in-memory twin of the network: any number of nodes in one thread, on a manual clock, with
// every delay, cut, repetition and change of order drawn from one seed. The same seed gives the
// same run.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/random.h"
#include "common/transport.h"

namespace poseidon {

/// What goes wrong on a MemoryNetwork. All zero: a perfect network with a fixed delay.
struct MemoryFaults {
  Nanoseconds min_delay{Milliseconds(1)};
  Nanoseconds max_delay{Milliseconds(1)};  ///< of each message, uniform
  /// Probabilities per message. A cut breaks the stream: what is under way in both directions is
  /// lost, and each end hears of it at its own time.
  double cut = 0.0;
  double duplicate = 0.0;  ///< delivered twice
  double reorder = 0.0;    ///< may overtake messages before it on the same stream
  /// A real network stops failing sooner or later: no faults are drawn after so many.
  std::int64_t max_faults = 1000;
};

/// Several nodes and the events between them. One thread. Outlives its endpoints' streams.
class MemoryNetwork {
 public:
  MemoryNetwork(std::uint64_t seed, MemoryFaults faults);
  ~MemoryNetwork();

  /// A node's transport. Lives as long as the network.
  Transport& endpoint(const std::string& name);

  /// Moves the clock to the next event and runs it; false when there is none.
  bool step();
  Nanoseconds now() const { return clock_.now(); }

  std::int64_t cuts() const { return cuts_; }
  std::int64_t duplicates() const { return duplicates_; }
  std::int64_t reorders() const { return reorders_; }
  /// Messages written and not yet taken by their receiver, at most so far on any one stream
  /// direction.
  std::size_t max_queued_messages() const { return max_queued_; }

 private:
  class Endpoint;
  class Pipe;
  class End;

  void at(Nanoseconds time, std::function<void()> function);
  bool draw(double probability);
  Nanoseconds delay();

  ManualClock clock_;
  SplitMix64 random_;
  const MemoryFaults faults_;
  std::uint64_t sequence_ = 0;
  /// Events by (time, order of creation).
  std::map<std::pair<Nanoseconds, std::uint64_t>, std::function<void()>> events_;
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints_;
  std::map<std::string, Acceptor*> listeners_;  ///< by address
  std::int64_t faults_drawn_ = 0, cuts_ = 0, duplicates_ = 0, reorders_ = 0;
  std::size_t max_queued_ = 0;
};

}  // namespace poseidon
