#include "cli/doctor/doctor_slow_node.h"

#include <algorithm>

#include "cli/doctor/doctor_cores.h"
#include "common/base/median.h"

namespace poseidon {
namespace {

/// A smaller share of an iteration is not reported.
constexpr double kWorthOfIteration = 0.1;
/// A worker or link is slow when the others are faster by this.
constexpr double kSlowWorker = 1.3, kSlowLink = 4.0;
/// A worker whose mean is this many times its fast iterations, which are as fast as the others',
/// has no slow processor: something keeps it from running now and then.
constexpr double kBursts = 2.0;
/// A worker that computes this many times as long as the others is stopped for most of the time:
/// when it waits for cores or is slow in bursts, and when it is slow all the time (the stops are
/// shorter than its computing). A message waits for as long as a stop, whatever the link.
constexpr double kStoppedInBursts = 2.0, kStopped = 3.0;
/// When cores are short the times of all workers scatter, so the limit is higher: by this factor
/// times core_shortage.
constexpr double kScatterWorker = 0.4, kScatterLink = 2.0;

using Compute = double DoctorFacts::Worker::*;

double usual_of_others(const DoctorFacts& facts, const DoctorFacts::Worker& than, Compute by) {
  std::vector<double> others;
  for (const auto& worker : facts.workers) {
    if (&worker != &than) others.push_back(worker.*by);
  }
  return median(others);
}

/// Of an iteration, a process stands still as much as its computing takes longer than the
/// others'.
double stands_s(const DoctorFacts& facts, const SlowWorker& slow) {
  return (1.0 - slow.usual / slow.takes) * facts.iteration_s;
}

std::optional<SlowWorker> slow_worker_by(const DoctorFacts& facts, Compute by) {
  if (facts.workers.size() < 2) return std::nullopt;
  const DoctorFacts::Worker& slowest =
      *std::max_element(facts.workers.begin(), facts.workers.end(),
                        [by](const auto& a, const auto& b) { return a.*by < b.*by; });
  SlowWorker slow{
      .worker = &slowest, .takes = slowest.*by, .usual = usual_of_others(facts, slowest, by)};
  slow.cost_s = slow.takes - slow.usual;
  const double limit = slow_worker_limit(facts, &slowest.node);
  if (slow.takes < limit * slow.usual || !is_worth(facts, slow.cost_s)) return std::nullopt;
  const double quick = slowest.compute_quick_s;
  slow.in_bursts =
      slow.takes >= kBursts * quick &&
      quick < kSlowWorker * usual_of_others(facts, slowest, &DoctorFacts::Worker::compute_quick_s);
  if (slow.in_bursts) {
    // Whatever else it does stands still as long, and the others wait for that, too.
    const double wait_s =
        usual_of_others(facts, slowest, &DoctorFacts::Worker::stall_s) - slowest.stall_s;
    slow.cost_s = std::max(slow.cost_s, std::min(stands_s(facts, slow), wait_s));
  }
  return slow;
}

}  // namespace

std::vector<const DoctorFacts::Node*> nodes_of(const DoctorFacts& facts) {
  std::vector<const DoctorFacts::Node*> nodes;
  for (const auto& worker : facts.workers) nodes.push_back(&worker.node);
  for (const auto& server : facts.servers) nodes.push_back(&server.node);
  return nodes;
}

bool is_worth(const DoctorFacts& facts, double cost_s) {
  return cost_s >= kWorthOfIteration * facts.iteration_s;
}

double slow_worker_limit(const DoctorFacts& facts, const DoctorFacts::Node* node) {
  return kSlowWorker + (node == nullptr ? 0.0 : kScatterWorker * core_shortage(facts, *node));
}

std::optional<SlowWorker> slow_worker(const DoctorFacts& facts) {
  // Medians hide one that is stopped now and then; means, where all have their bad moments, one
  // that is a little slower all the time.
  std::optional<SlowWorker> slow = slow_worker_by(facts, &DoctorFacts::Worker::compute_mean_s);
  return slow ? slow : slow_worker_by(facts, &DoctorFacts::Worker::compute_s);
}

std::optional<SlowLink> slow_link(const DoctorFacts& facts, double stall_s) {
  const std::vector<const DoctorFacts::Node*> nodes = nodes_of(facts);
  std::optional<SlowLink> worst;
  // Within a host no link has its messages, and none is slow.
  if (facts.one_host || !is_worth(facts, stall_s)) return worst;
  for (const bool sends : {true, false}) {
    for (const auto* node : nodes) {
      const auto& rate = sends ? node->send_bytes_per_s : node->receive_bytes_per_s;
      const double busy_s = sends ? node->send_s : node->receive_s;
      if (!rate || !is_worth(facts, busy_s)) continue;
      std::vector<double> others;
      for (const auto* other : nodes) {
        const auto& theirs = sends ? other->send_bytes_per_s : other->receive_bytes_per_s;
        if (other != node && theirs) others.push_back(*theirs);
      }
      // One other tells nothing: it may be slow because this one's other end is.
      const double usual = median(others);
      const double limit = kSlowLink + kScatterLink * core_shortage(facts, *node);
      if (others.size() < 2 || *rate * limit > usual) continue;
      if (!worst || busy_s > worst->busy_s) worst = {node, sends, *rate, usual, busy_s, limit};
    }
  }
  return worst;
}

bool is_mostly_stopped(const SlowWorker& worker) {
  const bool is_known_to_stop = worker.in_bursts || waits_for_cores(worker.worker->node);
  return worker.takes >= (is_known_to_stop ? kStoppedInBursts : kStopped) * worker.usual;
}

bool explains(const DoctorFacts& facts, const SlowWorker& worker, const SlowLink& link) {
  if (is_mostly_stopped(worker)) return true;
  const double moves_s = link.busy_s - stands_s(facts, worker);
  return !is_worth(facts, moves_s) || link.rate * link.busy_s / moves_s * link.limit > link.usual;
}

}  // namespace poseidon
