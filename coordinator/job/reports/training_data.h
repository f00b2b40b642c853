#pragma once

// What a run trains on. A sample has one place in the run (docs/sampling.md): a worker that has
// found other data than the first one cannot train with it. A run may continue a checkpoint with
// other data, if people wish; the log says so. Pure.
//
// Called by: coordinator/job/preparation.h, with what workers found at the place that the job names
// (common/job/data_identity.h); it takes a worker in or not. saving.h writes the identity into
// checkpoints.
// Calls: nothing.

#include <optional>
#include <string>

#include "common/job/data_identity.h"

namespace poseidon {

class TrainingData {
 public:
  /// Nothing is known: the first worker's data are the run's.
  void forget() { known_.reset(); }
  /// A checkpoint's, of the name `whose`: what the run finds now may be another thing.
  void set_checkpoint(DataIdentity data, std::string whose);
  /// Of workers that trained until now.
  void set_trained(DataIdentity data);

  struct Worker {
    std::string name;          ///< for people
    bool is_new = false;       ///< came when the job had begun
    bool run_started = false;  ///< others have trained
  };
  /// For people; "": none.
  struct Answer {
    std::string refusal;  ///< why it cannot train with it
    std::string remark;   ///< it can, but not as the run would have gone on
  };
  Answer on_found(const Worker& worker, const DataIdentity& found);

  /// Nothing before a worker of it was ready.
  std::optional<DataIdentity> identity() const;

 private:
  struct Known {
    DataIdentity data;
    std::string whose;
    bool may_change = false;
  };
  std::optional<Known> known_;
};

}  // namespace poseidon
