#pragma once

// Simulates one iteration: predicts its time for a choice of scheme per layer. Pure.
//
// Called by: scheme_search.h, which compares choices. Calls: link_model.h, which says which bytes
// cross which link.
//
// The model (docs/decisions/0007-whole-iteration-cost-model.md says why, and from where)
//  1. Device, one thing at a time: backward of the layers last to first, then forward first to
//     last; forward(l) waits only for the parameters of layer l. Rebuild products take their turn
//     in the order of arrival, between two layers.
//  2. A PS layer is ready to go when its backward is done. Its pieces (one chunk per server) are
//     pushed, summed, and sent back. An SFB layer sends its factors, and when those of all workers
//     are in, rebuilds its gradient on the device; in exchange its backward leaves the weight's
//     out.
//  3. Each link (one direction of one NIC) carries first what the next forward needs first, except
//     for the bytes that its streams hold already, which are ahead of every new piece. A piece ends
//     when the last link has carried it. The servers sum in the same order.
//  4. Before the last forward ends every layer has arrived. So all links are empty when the next
//     backward begins, and one iteration simulated from there is the steady state.
// All workers behave alike; times are those of a fluid without losses, congestion or framing.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/plan.h"
#include "coordinator/planning/cost/link_model.h"

namespace poseidon {

/// Seconds are those of one worker and a whole batch.
struct ModelLayer {
  double forward_s = 0.0;
  double backward_s = 0.0;
  double bytes = 0.0;  ///< of the parameters on the wire
  bool sfb_applies = false;
  double factor_bytes = 0.0;    ///< of one worker
  double sfb_backward_s = 0.0;  ///< backward without the weight's gradient
  double rebuild_s = 0.0;       ///< the product over the factors of all workers
};

struct IterationModel {
  std::vector<ModelLayer> layers;  ///< forward order
  std::vector<LinkLoad> links;
  double latency_s = 0.0;    ///< of every hop between machines
  double in_flight_s = 0.0;  ///< time in which a link carries the bytes that its streams may hold
  double sum_s_per_byte = 0.0;    ///< busiest server, per byte of a PS layer
  double hot_s_per_byte = 0.0;    ///< a NIC in front of a server that owns a layer alone
  double largest_share = 1.0;     ///< of the servers' shares
  double stripe_bytes = 1 << 21;  ///< one chunk on each server
  double chunk_bytes = 1 << 21;
  std::uint32_t servers = 1;
};

/// `shares` by ServerIndex, sum 1; `window_bytes` as in Plan.
IterationModel make_iteration_model(std::vector<ModelLayer> layers, const LinkModel& cluster,
                                    const std::vector<double>& shares, std::int64_t chunk_bytes,
                                    std::int64_t window_bytes);

struct IterationPrediction {
  double iteration_s = 0.0;
  double compute_s = 0.0;       ///< on one worker without synchronisation
  std::vector<double> stall_s;  ///< by layer: how long the device waits before its forward
  std::vector<double> sync_s;   ///< by layer: from the end of its backward to its new parameters
};

/// `schemes` by layer; kSfb only where sfb_applies. O(n log n) in layers; about 0.2 ms for 500.
IterationPrediction play_iteration(const IterationModel& model, absl::Span<const Scheme> schemes);

/// How long the busiest link is busy with one layer.
double link_busy_s(const IterationModel& model, const ModelLayer& layer, Scheme scheme);

}  // namespace poseidon
