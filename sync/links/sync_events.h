#pragma once

// The events and the options of the synchronisation client's event side.
//
// Called by: sync/links/chunk_links.h and sync/client/factor_exchange.h, on the loop. Calls:
// sync/client/sync_client.h, which wakes the trainer; sync/relay/relay_service.h, which answers its
// group.

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/threads/team.h"
#include "sync/routes/landing.h"
#include "sync/routes/sfb_route.h"

namespace poseidon {

/// Events of the streams to the servers or to a relay. Called on the loop; the receiver may call
/// back.
class ChunkEvents {
 public:
  virtual ~ChunkEvents() = default;
  /// A chunk is in place; other chunks of its layer are missing. The layer's leading elements do
  /// not change until gradient_ready of iteration `version`.
  virtual void chunk_landed(const ChunkLanded& chunk) = 0;
  /// All parameters of the layer have `version` (the number of optimizer steps in them). After
  /// fetch_exact the same version is reported once more, exact.
  virtual void layer_landed(const LayerLanded& layer) = 0;
  /// The sum of squares of all gradients of `iteration`, when steps need it: SFB layers may now
  /// make that step.
  virtual void norms_complete(Iteration /*iteration*/, double /*all_gradients*/) {}
  /// Synchronisation has failed; the last event. The message names the other side and the remedy.
  virtual void sync_failed(const absl::Status& status) = 0;
};

/// Adds the events of SFB layers. Called on the loop; the receiver may call back.
class SyncerEvents : public ChunkEvents {
 public:
  void chunk_landed(const ChunkLanded& /*chunk*/) override {}
  void layer_landed(const LayerLanded& /*layer*/) override {}
  /// The run's first parameters of an SFB layer are in its memory. Later versions are not reported:
  /// the receiver makes the steps itself.
  virtual void layer_initialised(LayerIndex /*layer*/, Iteration /*version*/) {}
  /// All factors of this SFB layer and iteration have arrived: the layer can be stepped. For the
  /// iteration after the last: all workers have equal parameters.
  virtual void factors_complete(LayerIndex /*layer*/, Iteration /*iteration*/) {}
};

struct SyncerOptions {
  Nanoseconds reconnect_min{Milliseconds(50)};  ///< first pause after a cut; doubles
  Nanoseconds reconnect_max{Milliseconds(2000)};
  /// The run fails when a server or worker is unreachable for that long.
  Nanoseconds give_up_after{Milliseconds(30000)};
  /// The run's first iteration. Above 0, all nodes have the parameters of this version from a
  /// checkpoint before start(): servers their chunks, workers their SFB layers.
  Iteration first_iteration = 0;
  /// Called on the loop with a message for people when a server or worker becomes unreachable and
  /// when it answers again. May be empty.
  std::function<void(const std::string&)> log;
  /// Splits loops over the elements of a chunk; must outlive the syncer; used on the loop only.
  Team* team = sequential_team();
  SfbOptions sfb;  ///< the same on all workers; factor_options() sets first_iteration

  /// `sfb` with first_iteration.
  SfbOptions factor_options() const {
    SfbOptions options = sfb;
    options.first_iteration = first_iteration;
    return options;
  }
};

}  // namespace poseidon
