#pragma once

// The measurement before a job's plan, as a pure state machine: answers in, tasks out.
//
// Called by: coordinator/job/preparation.h, when an epoch's nodes are chosen; it plans with the
// calibration, or without one when this could not get any.
// Calls: nothing.
//
// Steps, one after the other, each with a deadline
//  1. Every worker computes, all at the same time, as they will train: those that share a machine
//     share its cores then as now.
//  2. Every server sums, all at the same time for the same reason.
//  3. Machines measure the network in pairs that have no machine in common, so that every NIC is
//     measured alone; in a few rounds with other pairs, of which a NIC's best counts (the other end
//     of a pair may have been the slower one). Nodes of one machine reach each other through shared
//     memory and are not measured; one node speaks for its machine.
//
// A job needs no calibration to train correctly, so nothing here fails a job: a node that does not
// answer, or says what cannot be, leaves the job without a calibration, and the reason names it. A
// pair that does not reach each other is no reason while others tell its machines' speed: the job
// itself may never need that connection.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/plan/calibration.h"
#include "coordinator/job/reports/reports.h"
#include "coordinator/members/membership.h"
#include "coordinator/planning/planner.h"

namespace poseidon {

/// Why there is nothing to measure for: no choice to make, nobody to send to, or no network between
/// them. "" when a calibration is worth its time.
std::string why_no_calibration(const std::vector<PlannerLayer>& layers, const SyncSpec& sync,
                               const std::vector<std::string>& worker_addresses,
                               const std::vector<std::string>& server_addresses);

struct CalibrationOptions {
  Nanoseconds max_compute = Milliseconds(1000);  ///< of passes on a worker
  Nanoseconds compute_timeout =
      std::chrono::minutes(5);                          ///< one pass of a large network may be long
  Nanoseconds max_sums = Milliseconds(100);             ///< of sums and steps on a server
  Nanoseconds sums_timeout = std::chrono::seconds(20);  ///< until it has answered
  Nanoseconds min_link = Milliseconds(20);              ///< of data, each way
  Nanoseconds max_link = Milliseconds(200);             ///< likewise
  double link_share = 0.02;  ///< of the job's computing, all together; within those bounds
  std::uint64_t max_link_bytes = 64 << 20;              ///< per direction
  Nanoseconds link_timeout = std::chrono::seconds(10);  ///< longer than a node's own (link_probe.h)
  std::size_t max_rounds = 3;  ///< of links: in each, every machine is measured with another one
};

struct CalibrationTask {
  enum class Kind { kCompute, kSums, kLink };
  Kind kind = Kind::kCompute;
  NodeId node;
  std::uint32_t step = 0;       ///< counts the tasks of one epoch; the answer carries it
  Nanoseconds max_time{0};      ///< of measuring
  std::string peer_address;     ///< kLink
  std::uint64_t max_bytes = 0;  ///< kLink
};

/// A node's answer, unchecked.
struct CalibrationAnswer {
  std::uint32_t step = 0;
  std::string error;
  std::vector<LayerTimes> layers;
  double device_ops_per_s = 0.0;
  double server_sum_bytes_per_s = 0.0;
  double send_bytes_per_s = 0.0, receive_bytes_per_s = 0.0;
  double latency_s = 0.0;
};

class CalibrationRun {
 public:
  /// `workers` by rank, `servers` by index, on two machines at least; `layers`: names of the
  /// parameter layers.
  CalibrationRun(const CalibrationOptions& options, std::vector<NodeInfo> workers,
                 std::vector<NodeInfo> servers, std::vector<std::string> layers,
                 Iteration iterations, Nanoseconds now);
  CalibrationRun(const CalibrationRun&) = delete;
  CalibrationRun& operator=(const CalibrationRun&) = delete;

  /// The tasks that begin now: after construction, and after every answer or tick.
  std::vector<CalibrationTask> take_tasks() { return std::exchange(tasks_, {}); }

  struct Refused {
    Refusal refusal = Refusal::kMalformed;
    std::string text;
  };
  /// What is wrong with the answer, if anything. An answer that belongs here but cannot be true is
  /// refused and counts as a failure of its node.
  std::optional<Refused> on_answer(NodeId from, const CalibrationAnswer& answer, Nanoseconds now);
  void tick(Nanoseconds now);
  /// Extends the deadline by `duration`, during which the coordinator could not receive.
  void extend_deadlines(Nanoseconds duration) { deadline_ += duration; }

  bool done() const { return done_; }
  /// Once done. The error says which node did not do its part, and why.
  absl::StatusOr<Calibration> result() const;
  /// For people: what goes on.
  std::string what() const;

 private:
  struct Pending {
    NodeId node;
    std::string name;
    std::size_t position = 0;  ///< rank or index; of a link, the caller's machine
    std::size_t peer = 0;      ///< of a link, the answerer's machine
    bool answered = false;
  };
  struct Machine {
    const NodeInfo* speaker = nullptr;  ///< a worker where there is one
    NicSpeed nic{.send_bytes_per_s = 0.0, .receive_bytes_per_s = 0.0};  ///< best so far
    std::string failure;                                                ///< of its last failed pair
  };

  void make_machines();
  void begin(CalibrationTask::Kind kind, Nanoseconds now);
  void begin_round(Nanoseconds now);
  void begin_next(Nanoseconds now);
  void settle(Nanoseconds now);
  void fail(const Pending& who, const std::string& why);
  std::string wrong_with(const CalibrationAnswer& answer) const;
  void use(const Pending& from, const CalibrationAnswer& answer);
  Nanoseconds link_time() const;
  std::size_t rounds() const;

  const CalibrationOptions options_;
  const std::vector<NodeInfo> workers_, servers_;
  const std::vector<std::string> layers_;
  const Iteration iterations_;

  CalibrationTask::Kind kind_ = CalibrationTask::Kind::kCompute;
  std::uint32_t step_ = 0;
  std::size_t round_ = 0;  ///< of links
  Nanoseconds deadline_{0};
  std::vector<Pending> pending_;  ///< of this step
  std::vector<CalibrationTask> tasks_;
  bool done_ = false;
  std::string failure_;  ///< why there is no calibration

  std::vector<std::size_t> machine_of_;  ///< workers by rank, then servers by index
  std::vector<Machine> machines_;
  std::vector<LayerTimes> slowest_;  ///< of the slowest worker: BSP waits for it
  double slowest_s_ = 0.0;
  double device_ops_per_s_ = 0.0;        ///< least
  double server_sum_bytes_per_s_ = 0.0;  ///< least
  std::vector<double> latencies_s_;
};

}  // namespace poseidon
