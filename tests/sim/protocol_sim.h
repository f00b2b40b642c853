#pragma once

// The whole protocol in one thread: coordinator, servers and workers on the in-memory network, with
// processes that die, freeze and lose connection at any step. One seed decides everything.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace poseidon::sim {

struct ProtocolOutcome {
  bool ok = false;
  std::string failure;             ///< which invariant broke, where, when
  std::string end;                 ///< how the job ended
  std::string description;         ///< what the seed stands for
  std::vector<std::string> trace;  ///< the last events, with virtual times
  std::int64_t steps = 0, epochs = 0, checkpoints = 0;
  std::int64_t relay_pauses = 0;  ///< how often a relay stopped reading from one of its group
  double virtual_seconds = 0.0;
  std::map<std::string, std::int64_t> faults;  ///< that happened, by name
};

/// Builds a cluster and a job from the seed (protocol_scenario.h), lets it train while its faults
/// happen, and holds it to:
///  1. forward(l) of iteration i reads, bit for bit, what one process would have computed along the
///     job's own history (truth.h), so each contribution counts once and all replicas of a layer
///     are identical; so do the model and the losses in metrics.jsonl;
///  2. a committed checkpoint is whole: each of its stores has each of its pieces, equal to the
///     truth, for as long as it is listed;
///  3. metrics.jsonl has each iteration and each test once, in order;
///  4. the run ends within a virtual deadline, done; failed only where nothing else is possible
///     (too few nodes are left, a store is lost, pieces are damaged);
///  5. when it is the first fault of all, a lost worker costs one iteration at most, a lost server
///     what was trained since the last checkpoint.
/// `verbose`: the trace has everything.
ProtocolOutcome simulate_protocol(std::uint64_t seed, bool verbose);
/// The same where one message of the data path never arrives (draw_lost_message_scenario): the job
/// must end done.
ProtocolOutcome simulate_lost_message(std::uint64_t seed, bool verbose);

}  // namespace poseidon::sim
