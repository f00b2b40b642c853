#pragma once

// What a node has told the coordinator about its part of a job, kept so that it can be told again:
// the coordinator may be away for a while, or come back without its memory. Pure.
//
// Before: a daemon reports (common/node/control_client.h). After: a stream draws messages one by
// one.
//
// Invariants
//  1. Messages are drawn in the order of add(), each once per rewind().
//  2. Only messages of the epoch of begin() are kept; begin() and end() forget all others.
//  3. A checkpoint that has failed, or is gone, takes the place of what was told of it before.
//  4. Memory is bounded: the last kKeptIterations iterations and the last kKeptEvents others.
//  5. An iteration says, whenever it is drawn, how long it has waited here: who hears of many at
//     once knows how fast they were made.

#include <cstdint>
#include <deque>
#include <optional>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// One thread at a time; `now` by one clock, whose zero is arbitrary.
class ReportOutbox {
 public:
  /// Iterations told again at most (16 bytes each). A coordinator that lacks older ones goes on
  /// without them. It takes twice as many from one worker before it has heard of another.
  static constexpr std::size_t kKeptIterations = 131072;
  /// Tests, checkpoints, Ready, Halted, Finished or Failed; beyond it the oldest go.
  static constexpr std::size_t kKeptEvents = 16384;

  /// A new assignment; `first` is the first iteration that it will report.
  void begin(Epoch epoch, std::uint32_t index, Iteration first);
  void end() { *this = ReportOutbox(); }
  /// Nothing while the node has no part in a job.
  const std::optional<Epoch>& epoch() const { return epoch_; }

  /// False when this is no message about the job in progress: nothing is kept then.
  bool add(const v1::NodeMessage& message, Nanoseconds now);

  /// The message to send next; nothing when all is sent.
  std::optional<v1::NodeMessage> next(Nanoseconds now);
  /// Iterations went that were not sent: this stream was too slow, and only a new one, with
  /// resume(), can tell the coordinator.
  bool overrun() const { return sent_ < oldest_; }

  /// What to say on a new stream, node_id left out. Only while there is an epoch.
  v1::Resume resume() const;
  /// Begins again with what the coordinator lacks.
  void rewind(const v1::Resumed& lacks);

 private:
  struct Told {
    double loss = 0.0;
    Nanoseconds since{0};  ///< when it was added
  };
  struct Event {
    Iteration after = 0;  ///< told when all iterations before this one are
    v1::NodeMessage message;
  };
  void withdraw_checkpoint(std::uint64_t iteration);
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
