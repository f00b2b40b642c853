#pragma once

// Keeps a node's reports about its part of a job, so that they can be sent again: the coordinator
// may be away for a while, or restart without them. Pure.
//
// Called by: common/node/control_client.h, when a daemon reports; common/node/control_stream.h,
// which draws messages one by one. Calls: nothing.
//
// Invariants
//  1. Messages are drawn in the order of add(), each once per rewind().
//  2. Only messages of the epoch of begin() are kept; begin() and end() forget all others.
//  3. A report that a checkpoint failed or is gone replaces earlier reports about it. An announced
//     model replaces the one announced before.
//  4. Memory is bounded: the last kKeptIterations iterations and the last kKeptEvents others.
//  5. A drawn iteration report states how long it has waited here, so that the coordinator knows
//     the speed even when it gets many at once.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// One thread at a time. `now` always comes from one clock, whose zero is arbitrary.
class ReportOutbox {
 public:
  /// Most iterations that are sent again (16 bytes each). A coordinator that lacks older ones
  /// continues without them. It accepts twice as many from one worker before the first report of
  /// another.
  static constexpr std::size_t kKeptIterations = 131072;
  /// Tests, checkpoints, Ready, Halted, ModelReady, Finished or Failed; beyond it the oldest are
  /// dropped.
  static constexpr std::size_t kKeptEvents = 16384;

  /// A new assignment; `first` is the first iteration that it will report.
  void begin(Epoch epoch, std::uint32_t index, Iteration first);
  void end() { *this = ReportOutbox(); }
  /// nullopt while the node has no part in a job.
  const std::optional<Epoch>& epoch() const { return epoch_; }

  /// False, keeping nothing, when the message is not about the current job.
  bool add(const v1::NodeMessage& message, Nanoseconds now);

  /// The next message to send; nullopt when all are sent.
  std::optional<v1::NodeMessage> next(Nanoseconds now);
  /// Unsent iterations were dropped because this stream was too slow. Only a new stream, with
  /// resume(), can tell the coordinator.
  bool overrun() const { return sent_ < oldest_; }

  /// The Resume message for a new stream, without node_id. Only while there is an epoch.
  v1::Resume resume() const;
  /// Starts again from the reports that the coordinator lacks.
  void rewind(const v1::Resumed& lacks);

 private:
  struct Told {
    double loss = 0.0;
    Nanoseconds since{0};  ///< when it was added
  };
  struct Event {
    Iteration after = 0;  ///< sent after all iterations before this one
    v1::NodeMessage message;
  };
  void withdraw(const std::function<bool(const v1::NodeMessage&)>& is_it);
  Iteration end_iteration() const { return oldest_ + static_cast<Iteration>(iterations_.size()); }

  std::optional<Epoch> epoch_;
  std::uint32_t index_ = 0;
  std::deque<Told> iterations_;  ///< from oldest_ on
  Iteration oldest_ = 0;
  std::deque<Event> events_;
  Iteration sent_ = 0;           ///< the next iteration to send
  std::size_t events_sent_ = 0;  ///< the next event to send; may be beyond those to be skipped
  v1::Resumed lacks_;            ///< events before it are not told again
};

}  // namespace poseidon
