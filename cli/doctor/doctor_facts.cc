#include "cli/doctor/doctor_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/median.h"
#include "common/probes/tracer.h"

namespace poseidon {
namespace {

/// Fewer bytes tell nothing of a link: all of them fit into a card's queue.
constexpr double kTellingBytes = 64 << 10;

/// How long at least one of these intervals lasts.
double covered(std::vector<std::pair<Nanoseconds, Nanoseconds>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  Nanoseconds sum{0};
  Nanoseconds until = Nanoseconds::min();
  for (const auto& [begin, end] : intervals) {
    const Nanoseconds from = std::max(begin, until);
    if (end > from) {
      sum += end - from;
      until = end;
    }
  }
  return seconds(sum);
}

/// Of fewer iterations, a mean without the longest and the shortest of ten tell no more than the
/// median.
constexpr std::size_t kTellingIterations = 4;

void set_compute(const std::map<Iteration, double>& by_iteration, DoctorFacts::Worker& worker) {
  std::vector<double> values;
  values.reserve(by_iteration.size());
  for (const auto& [iteration, value] : by_iteration) values.push_back(value);
  worker.compute_s = worker.compute_mean_s = worker.compute_quick_s = median(values);
  if (values.size() < kTellingIterations) return;
  std::sort(values.begin(), values.end());
  worker.compute_quick_s = values[values.size() / 10];
  worker.compute_mean_s = std::accumulate(values.begin(), values.end() - 1, 0.0) /
                          static_cast<double>(values.size() - 1);
}

bool on_one_host(const std::vector<TimedNode>& nodes) {
  return std::ranges::all_of(nodes, [&nodes](const TimedNode& node) {
    return same_machine(node.address, nodes.front().address);
  });
}

/// Fewer are none: how long an iteration takes is between two beginnings.
constexpr Iteration kFewestIterations = 2;

/// Nodes and events of the iterations that every node recorded to their end. When a node's buffer
/// was full, or only its beginning arrived, the node's last iteration is incomplete, and so is the
/// one before: a worker may begin an iteration while others wait for their parameters of the
/// previous one. They have those of the one before that: their gradients were in the sums.
std::vector<TimedNode> whole_iterations(const TraceData& trace, std::vector<std::string>& notes) {
  std::vector<TimedNode> nodes = timed_nodes(trace);
  Iteration first = std::numeric_limits<Iteration>::max(), newest = 0;
  std::vector<Iteration> newest_of(nodes.size(), -1);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (const TimedEvent& event : nodes[n].events) {
      if (!is_of_iteration(event.stage)) continue;
      first = std::min(first, event.iteration);
      newest_of[n] = std::max(newest_of[n], event.iteration);
    }
    newest = std::max(newest, newest_of[n]);
  }
  Iteration end = newest + 1;
  std::vector<TimedNode> kept;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    // No worker is more than one iteration behind.
    const bool is_cut =
        newest_of[n] >= 0 && (trace.nodes[n].node.dropped() > 0 || newest_of[n] + 1 < newest);
    const Iteration whole_until = newest_of[n] - 1;
    if (is_cut && whole_until < first + kFewestIterations) {
      notes.push_back(absl::StrCat(nodes[n].name(), ": its events are of less than ",
                                   kFewestIterations, " whole iterations, so it is left out"));
      continue;
    }
    if (is_cut) end = std::min(end, whole_until);
    kept.push_back(std::move(nodes[n]));
  }
  for (TimedNode& node : kept) {
    std::erase_if(node.events, [end](const TimedEvent& event) {
      return is_of_iteration(event.stage) && event.iteration >= end;
    });
  }
  return kept;
}

/// Iterations seen, and how long one takes: between their first events on the node that shows most.
void measure_iterations(const std::vector<TimedNode>& nodes, DoctorFacts& facts) {
  for (const TimedNode& node : nodes) {
    if (node.is_server) continue;
    std::map<Iteration, Nanoseconds> begins;
    for (const TimedEvent& event : node.events) {
      if (event.stage == Stage::kForward) begins.try_emplace(event.iteration, event.begin);
    }
    const auto count = static_cast<std::int64_t>(begins.size());
    if (count <= facts.iterations || count < kFewestIterations) continue;
    facts.iterations = count;
    // Not less than nothing, whatever a node says.
    const Nanoseconds took =
        std::max(begins.rbegin()->second - begins.begin()->second, Nanoseconds(0));
    facts.iteration_s = seconds(took) / static_cast<double>(count - 1);
  }
}

class Links {
 public:
  Links(const std::vector<TimedNode>& nodes, double iterations) : iterations_(iterations) {
    const bool spans_machines = !on_one_host(nodes);
    std::map<std::pair<std::size_t, std::size_t>, Intervals> streams;
    for (const TracedMessage& message : traced_messages(nodes)) {
      // Within a machine no link has it, and it would hide how slow its network card is. Where all
      // are on one machine, there is nothing else to tell of.
      const bool is_local = same_machine(nodes[message.from].address, nodes[message.to].address);
      if (is_local && (message.in_group || spans_machines)) continue;
      // Clocks are not quite one.
      const std::pair way(message.sent, std::max(message.arrived, message.sent));
      Intervals& stream = streams[{message.from, message.to}];
      for (Intervals* all : {&stream, &sent_[message.from], &received_[message.to]}) {
        all->way.push_back(way);
        all->bytes += static_cast<double>(message.bytes);
      }
    }
    for (const auto& [ends, stream] : streams) {
      const double way_s = covered(stream.way);
      if (stream.bytes < kTellingBytes || way_s <= 0.0) continue;
      const double rate = stream.bytes / way_s;
      auto& best_out = best_sent_[ends.first];
      best_out = std::max(best_out, rate);
      auto& best_in = best_received_[ends.second];
      best_in = std::max(best_in, rate);
    }
  }

  void fill(std::size_t n, DoctorFacts::Node& node) {
    const auto rate = [n](const std::map<std::size_t, double>& best) {
      const auto found = best.find(n);
      return found == best.end() ? std::nullopt : std::optional(found->second);
    };
    node.send_bytes_per_s = rate(best_sent_);
    node.receive_bytes_per_s = rate(best_received_);
    node.send_s = covered(sent_[n].way) / iterations_;
    node.receive_s = covered(received_[n].way) / iterations_;
    node.sent_bytes = sent_[n].bytes / iterations_;
    node.received_bytes = received_[n].bytes / iterations_;
  }

 private:
  struct Intervals {
    std::vector<std::pair<Nanoseconds, Nanoseconds>> way;
    double bytes = 0.0;
  };
  const double iterations_;
  std::map<std::size_t, Intervals> sent_, received_;
  std::map<std::size_t, double> best_sent_, best_received_;
};

const v1::NodeStatus* status_of(const v1::GetStatusResponse& status, const TimedNode& node) {
  for (const v1::NodeStatus& told : node.is_server ? status.servers() : status.workers()) {
    if (told.rank() == static_cast<std::int32_t>(node.index)) return &told;
  }
  return nullptr;
}

/// Of a node's load. What no load can be counts as none, and within kMostLoad no sum overflows.
double sane(double told) {
  constexpr double kMostLoad = 1e15;
  return std::isfinite(told) ? std::clamp(told, 0.0, kMostLoad) : 0.0;
}

void add_to_machine(const DoctorFacts::Node& node, std::uint32_t cores, DoctorFacts& facts) {
  auto machine = std::find_if(facts.machines.begin(), facts.machines.end(),
                              [&](const auto& known) { return known.id == node.machine; });
  if (machine == facts.machines.end()) {
    machine = facts.machines.insert(facts.machines.end(), DoctorFacts::Machine{});
    machine->id = node.machine;
  }
  machine->cores = std::max(machine->cores, static_cast<double>(cores));
  machine->used += node.used;
  machine->wanted += node.wanted;
  machine->processes.push_back(node.name);
}

}  // namespace

DoctorFacts make_facts(const TraceData& trace, const v1::GetStatusResponse& status) {
  DoctorFacts facts;
  facts.notes = trace.notes;
  const v1::PlanMessage& plan = trace.head.plan();
  facts.batch_size = plan.batch_size();
  facts.sixteen_bits = plan.wire_dtype() != "fp32";
  const double element_bytes = facts.sixteen_bits ? 2.0 : 4.0;
  for (const v1::PlanLayerMessage& layer : plan.layers()) {
    facts.layers.push_back(
        {.name = layer.name(),
         .fully_connected_by_ps = layer.type() == "fully_connected" && layer.scheme() == "ps",
         .by_sfb = layer.scheme() == "sfb",
         .bytes = static_cast<double>(layer.parameters()) * element_bytes});
  }
  const std::vector<TimedNode> nodes = whole_iterations(trace, facts.notes);
  measure_iterations(nodes, facts);
  facts.one_host = on_one_host(nodes);
  const double iterations = std::max<double>(static_cast<double>(facts.iterations), 1.0);
  Links links(nodes, iterations);
  std::vector<double> shard(static_cast<std::size_t>(plan.server_addresses_size()));
  for (const v1::PlanChunkMessage& chunk : plan.chunks()) {
    if (chunk.server() < shard.size()) {
      shard[chunk.server()] += static_cast<double>(chunk.elements()) * element_bytes;
    }
  }
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const TimedNode& node = nodes[n];
    DoctorFacts::Node common{.name = node.name()};
    links.fill(n, common);
    const v1::NodeStatus* told = status_of(status, node);
    // A node says its machine when it joins, its load from the second heartbeat on.
    if (told != nullptr) {
      common.machine = told->machine() != 0 ? told->machine() : told->load().machine();
    }
    if (told != nullptr && (told->has_load() || common.machine != 0)) {
      common.used = sane(told->load().cores_used());
      common.wanted = sane(told->load().cores_wanted());
      add_to_machine(common, told->load().cores(), facts);
    }
    std::array<double, static_cast<std::size_t>(Stage::kCount)> spent{};
    std::map<Iteration, double> computed;
    for (const TimedEvent& event : node.events) {
      const double took = seconds(event.end - event.begin) / iterations;
      spent[static_cast<std::size_t>(event.stage)] += took;
      if (event.stage == Stage::kForward || event.stage == Stage::kBackward ||
          event.stage == Stage::kRebuild) {
        computed[event.iteration] += seconds(event.end - event.begin);
      }
      if (event.stage == Stage::kStall && event.layer && *event.layer < facts.layers.size()) {
        facts.layers[*event.layer].stall_s += took;
      }
    }
    const auto of = [&spent](Stage stage) { return spent[static_cast<std::size_t>(stage)]; };
    if (node.is_server) {
      DoctorFacts::Server server{.node = std::move(common),
                                 .busy_s = of(Stage::kSum) + of(Stage::kStep)};
      if (node.index < shard.size()) server.shard_bytes = shard[node.index];
      if (told != nullptr && told->has_load()) {
        server.disk_share = sane(told->load().disk_share());
        server.disk_bytes_per_s = sane(told->load().disk_bytes_per_s());
        server.disk_waiting = static_cast<double>(told->load().disk_waiting());
      }
      facts.servers.push_back(std::move(server));
    } else {
      DoctorFacts::Worker worker{.node = std::move(common),
                                 .stall_s = of(Stage::kStall),
                                 .input_s = of(Stage::kInput),
                                 .corrupt_samples = told != nullptr ? told->corrupt_samples() : 0};
      set_compute(computed, worker);
      facts.workers.push_back(std::move(worker));
    }
  }
  for (DoctorFacts::Layer& layer : facts.layers) {
    layer.stall_s /= std::max<double>(static_cast<double>(facts.workers.size()), 1.0);
  }
  return facts;
}

std::int64_t iterations_that_fit(const v1::GetStatusResponse& status) {
  // Not in integers: no sum overflows, whatever the coordinator says.
  const auto workers = static_cast<double>(
      std::count_if(status.workers().begin(), status.workers().end(),
                    [](const v1::NodeStatus& node) { return node.rank() >= 0; }));
  double chunks = 0.0, factors = 0.0;
  std::map<std::uint32_t, double> owned;  // by server
  for (const v1::LayerStatus& layer : status.layers()) {
    if (layer.scheme() == "sfb") factors += workers;
    for (const auto& [server, count] : layer.chunks()) {
      chunks += count;
      owned[server] += count;
    }
  }
  double most_owned = 0.0;
  for (const auto& [server, count] : owned) most_owned = std::max(most_owned, count);
  // Each message is used, waits and is sent, at the server once per worker; a few are the
  // trainer's.
  constexpr double kPerMessage = 3.0, kTrainer = 4.0;
  // A GPU's copies of a layer: parameters, in parts each of which was waited for, and gradient, or
  // three of factors; and of a batch.
  const bool copies =
      std::any_of(status.workers().begin(), status.workers().end(),
                  [](const v1::NodeStatus& node) { return node.device().starts_with("cuda"); });
  const double per_layer = copies ? 4.0 : 1.0;
  double parts = 0.0;
  if (copies) {
    constexpr double kBatchPieces = 128.0, kEventsPerPart = 2.0, kPartElements = 2 << 20;
    parts = kBatchPieces;
    for (const v1::LayerStatus& layer : status.layers()) {
      const auto elements = static_cast<double>(std::max<std::int64_t>(layer.parameters(), 0));
      parts += kEventsPerPart * elements / kPartElements;
    }
  }
  const double server = kPerMessage * workers * most_owned;
  const double worker =
      kPerMessage * (chunks + factors) + per_layer * status.layers_size() + parts + kTrainer;
  constexpr auto kMost = static_cast<double>(Tracer::kMaxEvents);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(kMost / std::max(server, worker)));
}

}  // namespace poseidon
