#pragma once

// What the synchronisation client's event side tells, and what it may be told at the start.
//
// Before: sync/links/chunk_links.h and sync/client/factor_exchange.h, on the loop. After:
// sync/client/sync_client.h wakes the trainer; sync/relay/relay_service.h answers its group.

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/threads/team.h"
#include "sync/routes/landing.h"
#include "sync/routes/sfb_route.h"

namespace poseidon {

/// What the streams to the servers, or to a relay, tell. On the loop; may call back.
class ChunkEvents {
 public:
  virtual ~ChunkEvents() = default;
  /// A chunk is in place, and others of its layer are not yet. The layer's leading elements stay so
  /// until this worker's gradient of iteration `version` is given away.
  virtual void chunk_landed(const ChunkLanded& chunk) = 0;
  /// The layer's parameters are those of `version` (how many optimizer steps are in them), all of
  /// them; after fetch_exact the same version once more, exact.
  virtual void layer_landed(const LayerLanded& layer) = 0;
  /// Where steps need the norm of all gradients: the squares of those of `iteration`, so SFB layers
  /// may make that step.
  virtual void norms_complete(Iteration /*iteration*/, double /*all_gradients*/) {}
  /// Synchronisation cannot go on; last event. The message names the other side and the remedy.
  virtual void sync_failed(const absl::Status& status) = 0;
};

/// With layers that go by SFB. On the loop; may call back.
class SyncerEvents : public ChunkEvents {
 public:
  void chunk_landed(const ChunkLanded& /*chunk*/) override {}
  void layer_landed(const LayerLanded& /*layer*/) override {}
  /// The parameters that the run begins with are in an SFB layer's memory. Whoever steps it knows
  /// its later versions.
  virtual void layer_initialised(LayerIndex /*layer*/, Iteration /*version*/) {}
  /// All factors of this SFB layer and iteration are here, to be stacked and stepped. For the
  /// iteration after the last: all workers have the same parameters.
  virtual void factors_complete(LayerIndex /*layer*/, Iteration /*iteration*/) {}
};

struct SyncerOptions {
  Nanoseconds reconnect_min{Milliseconds(50)};  ///< first pause after a cut; doubles
  Nanoseconds reconnect_max{Milliseconds(2000)};
  /// A server or worker that cannot be reached for so long fails the run.
  Nanoseconds give_up_after{Milliseconds(30000)};
  /// The run begins here. Above 0 everybody's parameters are those of this version already, from a
  /// checkpoint: servers have theirs, and the memory of SFB layers holds its own before start().
  Iteration first_iteration = 0;
  /// Hears, on the loop, when a server or worker cannot be reached any more and when it can again:
  /// for people. May be empty.
  std::function<void(const std::string&)> log;
  /// For loops over chunks; outlives the syncer, and the loop alone calls it.
  Team* team = sequential_team();
  SfbOptions sfb;  ///< must be the same on all workers; factor_options() has its first_iteration

  /// `sfb`, of a run that begins at first_iteration.
  SfbOptions factor_options() const {
    SfbOptions options = sfb;
    options.first_iteration = first_iteration;
    return options;
  }
};

}  // namespace poseidon
