#include "coordinator/job/reports/calibration_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/address.h"
#include "common/base/check.h"
#include "common/base/median.h"

namespace poseidon {
namespace {

// Beyond these somebody is mistaken or lies.
constexpr double kMaxLayerS = 3600.0;
constexpr double kMinBytesPerS = 1e3;
constexpr double kMaxBytesPerS = 1e14;
constexpr double kMinOpsPerS = 1e5;
constexpr double kMaxOpsPerS = 1e18;
constexpr double kMaxLatencyS = 60.0;
/// Machines whose speed differs by less than a measurement does are taken as alike: plans (and the
/// search for them) need not follow the noise.
constexpr double kAlike = 0.15;

bool within(double value, double least, double most) { return value >= least && value <= most; }

std::string name_of(const NodeInfo& node, std::size_t index) {
  return absl::StrFormat("%s %d (%s)", role_name(node.role), index, node_place(node));
}

void even_out(const std::vector<double*>& speeds) {
  std::vector<double> values;
  for (const double* speed : speeds) values.push_back(*speed);
  // One of them, the faster of two: to a mean, machines of different speeds would both be near.
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), at, values.end());
  const double middle = *at;
  for (double* speed : speeds) {
    if (std::abs(*speed - middle) <= kAlike * middle) *speed = middle;
  }
}

}  // namespace

std::string why_no_calibration(const std::vector<PlannerLayer>& layers, const SyncSpec& sync,
                               const std::vector<std::string>& worker_addresses,
                               const std::vector<std::string>& server_addresses) {
  if (sync.cost != "time") return "sync.cost is \"bytes\"";
  if (!sync.plan.is_null()) return "sync.plan repeats an earlier plan";
  const bool any_free = std::any_of(layers.begin(), layers.end(), [&](const PlannerLayer& layer) {
    return layer.is_fully_connected && asked_scheme(layer, sync) == "auto";
  });
  if (!any_free) return "no layer's scheme is left to choose";
  if (worker_addresses.size() < 2) return "one worker has nobody to share gradients with";
  std::vector<std::string> addresses = worker_addresses;
  addresses.insert(addresses.end(), server_addresses.begin(), server_addresses.end());
  const std::vector<std::size_t> machines = machine_numbers(addresses);
  if (*std::max_element(machines.begin(), machines.end()) == 0) {
    return "all nodes share one machine, and no network is between them";
  }
  return "";
}

CalibrationRun::CalibrationRun(const CalibrationOptions& options, std::vector<NodeInfo> workers,
                               std::vector<NodeInfo> servers, std::vector<std::string> layers,
                               Iteration iterations, Nanoseconds now)
    : options_(options),
      workers_(std::move(workers)),
      servers_(std::move(servers)),
      layers_(std::move(layers)),
      iterations_(iterations) {
  make_machines();
  POSEIDON_CHECK(machines_.size() > 1, "a calibration is about what is between machines");
  begin(CalibrationTask::Kind::kCompute, now);
}

void CalibrationRun::make_machines() {
  std::vector<std::string> addresses;
  std::vector<const NodeInfo*> nodes;
  for (const auto* group : {&workers_, &servers_}) {
    for (const NodeInfo& node : *group) {
      addresses.push_back(node.address);
      nodes.push_back(&node);
    }
  }
  machine_of_ = machine_numbers(addresses);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (machine_of_[i] == machines_.size()) machines_.push_back({.speaker = nodes[i]});
  }
}

// ---- steps ----

std::size_t CalibrationRun::rounds() const {
  // Round robin: every machine meets every other one once in so many rounds.
  const std::size_t all = machines_.size() + machines_.size() % 2 - 1;
  return std::min(all, options_.max_rounds);
}

Nanoseconds CalibrationRun::link_time() const {
  const double job_s = slowest_s_ * static_cast<double>(iterations_);
  const double share_s = options_.link_share * job_s / (2.0 * static_cast<double>(rounds()));
  const double most_s = seconds(options_.max_link);
  const Nanoseconds time(static_cast<std::int64_t>(std::min(share_s, most_s) * 1e9));
  return std::max(time, options_.min_link);
}

void CalibrationRun::begin(CalibrationTask::Kind kind, Nanoseconds now) {
  kind_ = kind;
  ++step_;
  pending_.clear();
  if (kind == CalibrationTask::Kind::kLink) {
    begin_round(now);
    return;
  }
  const bool compute = kind == CalibrationTask::Kind::kCompute;
  deadline_ = now + (compute ? options_.compute_timeout : options_.sums_timeout);
  const std::vector<NodeInfo>& nodes = compute ? workers_ : servers_;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    pending_.push_back({.node = nodes[i].id, .name = name_of(nodes[i], i), .position = i});
    tasks_.push_back({.kind = kind,
                      .node = nodes[i].id,
                      .step = step_,
                      .max_time = compute ? options_.max_compute : options_.max_sums,
                      .peer_address = "",
                      .max_bytes = 0});
  }
}

/// The circle method: machine 0 stays, the others move on by one place per round; who sits opposite
/// each other is a pair. With an odd number one place is empty.
void CalibrationRun::begin_round(Nanoseconds now) {
  deadline_ = now + options_.link_timeout;
  const std::size_t places = machines_.size() + machines_.size() % 2;
  const auto at = [&](std::size_t place) {
    return place == 0 ? 0 : 1 + (place - 1 + round_) % (places - 1);
  };
  for (std::size_t i = 0; i < places / 2; ++i) {
    std::size_t caller = at(i), answerer = at(places - 1 - i);
    if (caller >= machines_.size() || answerer >= machines_.size()) continue;
    // Workers are the first nodes, so the lower machine has one where one of the two has; who
    // listens nowhere can still call.
    if (caller > answerer) std::swap(caller, answerer);
    if (machines_[answerer].speaker->address.empty()) std::swap(caller, answerer);
    const NodeInfo& from = *machines_[caller].speaker;
    const NodeInfo& to = *machines_[answerer].speaker;
    if (to.address.empty()) {
      machines_[caller].failure = machines_[answerer].failure =
          absl::StrCat(node_text(from), " and ", node_text(to), " listen nowhere");
      continue;
    }
    pending_.push_back(
        {.node = from.id, .name = node_text(from), .position = caller, .peer = answerer});
    tasks_.push_back({.kind = kind_,
                      .node = from.id,
                      .step = step_,
                      .max_time = link_time(),
                      .peer_address = to.address,
                      .max_bytes = options_.max_link_bytes});
  }
  ++round_;
  settle(now);
}

void CalibrationRun::settle(Nanoseconds now) {
  const bool all = std::all_of(pending_.begin(), pending_.end(),
                               [](const Pending& pending) { return pending.answered; });
  if (!failure_.empty()) {
    done_ = true;
  } else if (all) {
    begin_next(now);
  }
}

void CalibrationRun::begin_next(Nanoseconds now) {
  switch (kind_) {
    case CalibrationTask::Kind::kCompute:
      begin(CalibrationTask::Kind::kSums, now);
      return;
    case CalibrationTask::Kind::kSums:
    case CalibrationTask::Kind::kLink:
      if (round_ < rounds()) {
        begin(CalibrationTask::Kind::kLink, now);
        return;
      }
      break;
  }
  for (const Machine& machine : machines_) {
    if (machine.nic.send_bytes_per_s > 0.0) continue;
    failure_ = absl::StrCat("the network of ", node_text(*machine.speaker),
                            " could not be measured: ", machine.failure);
    break;
  }
  done_ = true;
}

// ---- answers ----

void CalibrationRun::fail(const Pending& who, const std::string& why) {
  const std::string text = absl::StrCat(who.name, " ", why);
  if (kind_ == CalibrationTask::Kind::kLink) {
    machines_[who.position].failure = machines_[who.peer].failure = text;
  } else if (failure_.empty()) {
    failure_ = text;
  }
}

std::string CalibrationRun::wrong_with(const CalibrationAnswer& answer) const {
  if (kind_ == CalibrationTask::Kind::kSums) {
    if (within(answer.server_sum_bytes_per_s, kMinBytesPerS, kMaxBytesPerS)) return "";
    return absl::StrCat("sums of ", answer.server_sum_bytes_per_s, " bytes/s");
  }
  if (kind_ == CalibrationTask::Kind::kLink) {
    if (within(answer.send_bytes_per_s, kMinBytesPerS, kMaxBytesPerS) &&
        within(answer.receive_bytes_per_s, kMinBytesPerS, kMaxBytesPerS) &&
        within(answer.latency_s, 0.0, kMaxLatencyS)) {
      return "";
    }
    return absl::StrCat("a network of ", answer.send_bytes_per_s, " and ",
                        answer.receive_bytes_per_s, " bytes/s and a latency of ", answer.latency_s,
                        " s");
  }
  if (answer.layers.size() != layers_.size()) {
    return absl::StrCat("times of ", answer.layers.size(), " layers, the network has ",
                        layers_.size());
  }
  double total_s = 0.0;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const LayerTimes& times = answer.layers[l];
    if (times.name != layers_[l]) return absl::StrCat("times of a layer that is not ", layers_[l]);
    if (!within(times.forward_s, 0.0, kMaxLayerS) || !within(times.backward_s, 0.0, kMaxLayerS)) {
      return absl::StrCat("times of ", times.forward_s, " and ", times.backward_s, " s for layer ",
                          times.name);
    }
    total_s += times.forward_s + times.backward_s;
  }
  if (total_s <= 0.0) return "no time at all for its layers";
  if (!within(answer.device_ops_per_s, kMinOpsPerS, kMaxOpsPerS)) {
    return absl::StrCat("products of ", answer.device_ops_per_s, " operations/s");
  }
  return "";
}

void CalibrationRun::use(const Pending& from, const CalibrationAnswer& answer) {
  const auto least = [](double& kept, double value) {
    kept = kept > 0.0 ? std::min(kept, value) : value;
  };
  switch (kind_) {
    case CalibrationTask::Kind::kCompute: {
      double total_s = 0.0;
      for (const LayerTimes& times : answer.layers) total_s += times.forward_s + times.backward_s;
      if (total_s > slowest_s_) {
        slowest_s_ = total_s;
        slowest_ = answer.layers;
      }
      least(device_ops_per_s_, answer.device_ops_per_s);
      return;
    }
    case CalibrationTask::Kind::kSums:
      least(server_sum_bytes_per_s_, answer.server_sum_bytes_per_s);
      return;
    case CalibrationTask::Kind::kLink: {
      const auto best = [](double& kept, double value) { kept = std::max(kept, value); };
      NicSpeed& caller = machines_[from.position].nic;
      NicSpeed& answerer = machines_[from.peer].nic;
      best(caller.send_bytes_per_s, answer.send_bytes_per_s);
      best(answerer.receive_bytes_per_s, answer.send_bytes_per_s);
      best(caller.receive_bytes_per_s, answer.receive_bytes_per_s);
      best(answerer.send_bytes_per_s, answer.receive_bytes_per_s);
      latencies_s_.push_back(answer.latency_s);
      return;
    }
  }
}

std::optional<CalibrationRun::Refused> CalibrationRun::on_answer(NodeId from,
                                                                 const CalibrationAnswer& answer,
                                                                 Nanoseconds now) {
  const auto pending = std::find_if(pending_.begin(), pending_.end(),
                                    [from](const Pending& p) { return p.node == from; });
  if (done_ || answer.step != step_ || pending == pending_.end()) {
    return Refused{
        Refusal::kWrongState,
        absl::StrFormat("a measurement of step %d from node %d, which is not asked for it",
                        answer.step, from.value())};
  }
  if (pending->answered) {
    return Refused{Refusal::kDuplicate, absl::StrCat("a second measurement from ", pending->name)};
  }
  pending->answered = true;
  std::optional<Refused> refused;
  if (!answer.error.empty()) {
    fail(*pending, absl::StrCat("could not measure: ", answer.error));
  } else if (const std::string wrong = wrong_with(answer); !wrong.empty()) {
    fail(*pending, absl::StrCat("says what cannot be: ", wrong));
    refused = Refused{Refusal::kMalformed, absl::StrCat(pending->name, " says: ", wrong)};
  } else {
    use(*pending, answer);
  }
  settle(now);
  return refused;
}

void CalibrationRun::tick(Nanoseconds now) {
  if (done_ || now <= deadline_) return;
  for (Pending& pending : pending_) {
    if (std::exchange(pending.answered, true)) continue;
    fail(pending, "did not answer in time");
  }
  settle(now);
}

// ---- the end ----

absl::StatusOr<Calibration> CalibrationRun::result() const {
  if (!failure_.empty()) return absl::UnavailableError(failure_);
  std::vector<NicSpeed> nics;
  for (const Machine& machine : machines_) nics.push_back(machine.nic);
  std::vector<double*> sends, receives;
  for (NicSpeed& nic : nics) {
    sends.push_back(&nic.send_bytes_per_s);
    receives.push_back(&nic.receive_bytes_per_s);
  }
  even_out(sends);
  even_out(receives);
  Calibration calibration{.measured = true,
                          .layers = slowest_,
                          .device_ops_per_s = device_ops_per_s_,
                          .server_sum_bytes_per_s = server_sum_bytes_per_s_,
                          .latency_s = median(latencies_s_),
                          .workers = {},
                          .servers = {}};
  for (std::size_t i = 0; i < machine_of_.size(); ++i) {
    (i < workers_.size() ? calibration.workers : calibration.servers)
        .push_back(nics[machine_of_[i]]);
  }
  return calibration;
}

std::string CalibrationRun::what() const {
  std::vector<std::string> awaited;
  for (const Pending& pending : pending_) {
    if (!pending.answered) awaited.push_back(pending.name);
  }
  const std::string who = absl::StrJoin(awaited, ", ");
  switch (kind_) {
    case CalibrationTask::Kind::kCompute:
      return absl::StrCat("measures how fast workers compute: ", who);
    case CalibrationTask::Kind::kSums:
      return absl::StrCat("measures how fast servers sum: ", who);
    case CalibrationTask::Kind::kLink:
      break;
  }
  return absl::StrFormat("measures the network, round %d of %d: %s", round_, rounds(), who);
}

}  // namespace poseidon
