#pragma once

// The data that are shown of a cluster: events, refusals, the loss curve, traffic per layer, loads
// of machines, and the totals of the metrics page.
//
// Called by: cluster*.cc and the other parts, which report here. Calls: coordinator/watch/ and the
// log.
//
// Invariants
//  1. No decision depends on this data, except that the job considers another plan by the times of
//     layers (slowest).
//  2. Numbers from nodes are checked here: invalid ones are not added.
//  3. Totals never go back: iterations that are trained again are counted again.
// Used with Cluster's mutex held (cluster_context.h).

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/probes/awaited.h"
#include "coordinator/cluster/cluster_context.h"
#include "coordinator/members/admission.h"
#include "coordinator/members/counter_book.h"
#include "coordinator/members/load_monitor.h"
#include "coordinator/records/loss_curve.h"
#include "coordinator/watch/event_list.h"
#include "coordinator/watch/metrics.h"
#include "coordinator/watch/refusal_totals.h"
#include "coordinator/watch/traffic.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// What a node says that it waits for; no more than an honest one tells.
std::vector<AwaitedData> awaited_from(const v1::Heartbeat& heartbeat);

class Watch {
 public:
  /// `context` outlives it.
  explicit Watch(const ClusterContext& context) : context_(context) {}

  // ---- events ----
  /// For the log and for the status page.
  void note(EventKind kind, const std::string& text);
  /// Counts a message that was refused; the log shows some of them.
  void refuse(Refusal refusal, const std::string& text);
  const EventList& events() const { return events_; }
  const RefusalTotals& refusals() const { return refusals_; }

  // ---- nodes ----
  void on_departure(const NodeInfo& node, DepartureKind kind);
  void take_refusals(NodeId from, const v1::Heartbeat& heartbeat);
  void take_counters(NodeId from, const v1::Heartbeat& heartbeat) {
    counters_.take(from, heartbeat);
  }
  /// Null before the first. Valid until the node's next heartbeat.
  const v1::CountersStatus* counters(NodeId node) const { return counters_.of(node); }
  /// False: the load makes no sense.
  bool take_load(NodeId from, const v1::NodeLoad& load);
  /// Of a worker of the job whose plan is known (has_traffic). Returns a description of the invalid
  /// part, to be followed by "from NODE"; "" when all was accepted.
  std::string take_traffic(NodeId from, const v1::Heartbeat& heartbeat);
  std::optional<LoadRates> load(NodeId node) const { return loads_.rates(node); }

  // ---- the job ----
  /// A job begins or continues at this iteration with this curve.
  void begin_job(LossCurve curve, Iteration first);
  void count_job(const JobCounts& counts) { counts_.jobs += counts; }
  void count_end(bool done, bool was_stopped);
  /// Traffic is measured from the first plan on.
  void begin_traffic(std::size_t layers);
  bool has_traffic() const { return traffic_ != nullptr; }
  void count_iterations(Iteration completed);
  void add_line(const std::string& line);
  void roll_back(Iteration iteration) { curve_.roll_back(iteration); }
  /// The rates of an ended job are those of its end.
  WorkerRates worker_rates(NodeId node, Nanoseconds until) const;
  LayerRates layer_rates(LayerIndex layer, Nanoseconds until) const;
  /// Once per window: how long each layer takes on the slowest worker; empty where that is not due
  /// or not known.
  std::vector<MeasuredLayer> due_layer_times(Nanoseconds now);
  const LossCurve& curve() const { return curve_; }
  /// Of jobs: those before the present one.
  const ClusterCounts& counts() const { return counts_; }

 private:
  const ClusterContext& context_;
  EventList events_;
  RefusalTotals refusals_;
  ClusterCounts counts_;
  Iteration counted_iterations_ = 0;  ///< of the job, already in counts_
  std::unique_ptr<TrafficMonitor> traffic_;
  Nanoseconds layer_times_at_{0};  ///< when they were last due
  LossCurve curve_;
  LoadMonitor loads_;
  CounterBook counters_;
};

/// "worker 10.0.0.1:4701, node 3", for messages about the node.
std::string sender_text(const Membership& membership, NodeId from);

}  // namespace poseidon
