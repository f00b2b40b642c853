#pragma once

// What the synchronisation client's event side tells, and what it may be told at the start. Shared
// by sync/client/syncer.h and sync/client/factor_exchange.h.

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/team.h"
#include "sync/routes/sfb_route.h"

namespace poseidon {

/// On the loop.
class SyncerEvents {
 public:
  virtual ~SyncerEvents() = default;
  /// The layer's parameters are those of `version` (how many optimizer steps are in them). Of a
  /// layer that goes by SFB only version 0 is reported: whoever steps it knows the others.
  virtual void parameters_ready(LayerIndex layer, Iteration version) = 0;
  /// Before that, of layers that go by PS: the layer's first `elements` parameters are those of
  /// `version`. They stay so until this worker's gradient of iteration `version` is given away.
  virtual void parameters_arriving(LayerIndex /*layer*/, Iteration /*version*/,
                                   std::int64_t /*elements*/) {}
  /// After fetch_exact: the layer's parameters are the server's, in float32.
  virtual void exact_parameters_ready(LayerIndex /*layer*/) {}
  /// All factors of this SFB layer and iteration are here, to be stacked and stepped. For the
  /// iteration after the last: all workers have the same parameters.
  virtual void factors_complete(LayerIndex /*layer*/, Iteration /*iteration*/) {}
  /// Where steps need the norm of all gradients: the squares of those of `iteration`, so SFB layers
  /// may make that step.
  virtual void norms_complete(Iteration /*iteration*/, double /*all_gradients*/) {}
  /// Synchronisation cannot go on; last event. The message names the other side and the remedy.
  virtual void sync_failed(const absl::Status& status) = 0;
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
  SfbOptions sfb;  ///< must be the same on all workers; its first_iteration is taken from above
};

}  // namespace poseidon
