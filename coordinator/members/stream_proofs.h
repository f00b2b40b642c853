#pragma once

// The numbers by which a worker's streams prove, in one epoch, whose they are (StreamProofs in
// control.proto). A process that was given no part in the epoch knows none of them, so it can push
// no gradient under a worker's rank. Pure, but for the source of random numbers, which is given.
//
// Called by: coordinator/cluster/job_host.h, with each assignment. Calls: nothing.
//
// Numbers of 64 random bits: a guess costs its sender a connection, so even a million guesses a
// second would take 10^5 years. They protect against strangers and mistakes. Whoever can read the
// network's packets can read them, too, unless the cluster uses TLS.

#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/ids.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class StreamProofBook {
 public:
  /// `draw` gives a random number at each call.
  explicit StreamProofBook(std::function<std::uint64_t()> draw) : draw_(std::move(draw)) {}

  /// For the worker of this rank, and for the server of this index. All nodes of an epoch are told
  /// of the same numbers; the first call with another epoch, or other numbers of nodes, draws new
  /// ones.
  v1::StreamProofs for_worker(Epoch epoch, std::uint32_t workers, std::uint32_t servers,
                              std::uint32_t rank);
  v1::StreamProofs for_server(Epoch epoch, std::uint32_t workers, std::uint32_t servers,
                              std::uint32_t index);

 private:
  void begin(Epoch epoch, std::uint32_t workers, std::uint32_t servers);
  /// What worker `rank` shows to `node`: the servers come after the workers.
  std::uint64_t shown(std::uint32_t rank, std::uint32_t node) const {
    return numbers_[std::size_t{rank} * (workers_ + servers_) + node];
  }

  const std::function<std::uint64_t()> draw_;
  Epoch epoch_;
  std::uint32_t workers_ = 0, servers_ = 0;
  std::vector<std::uint64_t> numbers_;  ///< never 0
};

}  // namespace poseidon
