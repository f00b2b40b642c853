#include "cli/doctor_diagnose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/doctor_health.h"
#include "common/median.h"
#include "common/scaled_text.h"
#include "common/seconds_text.h"

namespace poseidon {
namespace {

/// What costs less of an iteration is not worth a word.
constexpr double kWorthShare = 0.1;
/// A worker, link or disk is slow when the others are faster by this.
constexpr double kSlowWorker = 1.3, kSlowLink = 4.0, kSlowDisk = 4.0;
/// One that takes so many times as long as its quick iterations, which are as quick as the others',
/// has no slow processor: it does not get to run in between.
constexpr double kBursts = 2.0;
/// Where cores are short everybody's times scatter, and it takes more: so much for each core that
/// is missed per core that is had, of which kMostShortage count.
constexpr double kScatterWorker = 0.4, kScatterLink = 2.0, kMostShortage = 3.0;
/// Cores are short when processes wait for one so much of the time that they have one.
constexpr double kWaitsForCores = 0.5;
/// ... on a machine that uses so much of its cores (others than the job may use the rest).
constexpr double kBusyMachine = 0.5;
/// One process is kept from running when it waits so many times as long as it runs, and so many
/// cores would be its own, while the others on its machine get theirs.
constexpr double kLimitedWaits = 2.0, kLimitedCores = 0.25;
/// ... or wait, too, where the machine lacks cores, but so many times less for each that they have.
constexpr double kLimitedTimes = 8.0;
/// The network is too small when workers stand still so much of an iteration ...
constexpr double kNetworkStall = 0.3;
/// ... and messages are on their way so much of it.
constexpr double kNetworkBusy = 0.5;
/// A disk that writes so much of the time is at its limit.
constexpr double kBusyDisk = 0.8;
/// A server holds too much when it has this many times the mean.
constexpr double kUnevenShard = 1.5;
/// A server's thread that sums so much of an iteration is at its limit.
constexpr double kBusyServer = 0.6;
/// A GPU that runs kernels less of the time could compute more.
constexpr double kIdleGpu = 0.7;
/// One layer of several straggles when so much of all waiting is for it.
constexpr double kStragglerShare = 0.6;

std::string bits_text(double bytes_per_s) { return scaled_text(bytes_per_s * 8.0, "bit/s"); }
const char* const kWhatLimitsCpu =
    "a limit of its CPU (docker --cpus, a cgroup's quota: cpu.stat counts how often it throttled), "
    "a debugger or another sender of SIGSTOP, or another program on its cores (top)";

std::string percent(double share) { return absl::StrFormat("%.0f %%", std::min(share, 1.0) * 100); }

class Doctor {
 public:
  explicit Doctor(const DoctorFacts& facts) : f_(facts) {
    for (const auto& worker : f_.workers) nodes_.push_back(&worker.node);
    for (const auto& server : f_.servers) nodes_.push_back(&server.node);
    for (const auto& worker : f_.workers) {
      stall_s_ += worker.stall_s / static_cast<double>(f_.workers.size());
      compute_s_ += worker.compute_s / static_cast<double>(f_.workers.size());
    }
  }

  std::vector<Finding> run() {
    if (f_.iteration_s <= 0.0 || f_.workers.empty()) {
      add(Finding::Kind::kUnknown, "", 0.0, "there are too few iterations in the trace to tell",
          "ask again while the job trains, with more --iterations; where they take minutes, "
          "`poseidon trace --timeout-s` waits longer");
      return findings_;
    }
    const bool link = one_node();
    cpu();
    slower();
    input();
    servers();
    if (!link) network();
    if (findings_.empty()) layer();
    disks();
    for (Finding& finding : health_findings(f_)) findings_.push_back(std::move(finding));
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.cost_s > b.cost_s; });
    const bool costs = std::any_of(findings_.begin(), findings_.end(),
                                   [](const Finding& finding) { return finding.cost_s > 0.0; });
    if (!costs) nothing_else();
    return findings_;
  }

 private:
  void add(Finding::Kind kind, std::string guilty, double cost_s, std::string what,
           std::string remedy) {
    cost_s = std::clamp(cost_s, 0.0, f_.iteration_s);
    findings_.push_back({.kind = kind,
                         .guilty = std::move(guilty),
                         .cost_s = cost_s,
                         .share = f_.iteration_s > 0.0 ? cost_s / f_.iteration_s : 0.0,
                         .what = std::move(what),
                         .remedy = std::move(remedy)});
  }
  bool worth(double cost_s) const { return cost_s >= kWorthShare * f_.iteration_s; }

  /// Cores that the other processes of the job miss where the node is, per core that they have; 0
  /// where there are enough. What it waits for itself would excuse one whose CPU is limited.
  double shortage(const DoctorFacts::Node& node) const {
    for (const DoctorFacts::Machine& m : f_.machines) {
      if (m.id != node.machine) continue;
      const DoctorFacts::Machine others = m.processes.size() > 1 ? without(m, node) : m;
      if (lacks_cores(others)) return std::min(others.wanted / others.used, kMostShortage);
    }
    return 0.0;
  }
  static DoctorFacts::Machine without(DoctorFacts::Machine machine, const DoctorFacts::Node& node) {
    std::erase(machine.processes, node.name);
    machine.used = std::max(machine.used - node.used, 0.0);
    machine.wanted = std::max(machine.wanted - node.wanted, 0.0);
    return machine;
  }
  static bool waits_for_cores(const DoctorFacts::Node& node) {
    return node.wanted >= kLimitedCores && node.wanted >= kWaitsForCores * node.used;
  }
  /// Whether the node hardly gets to run while the others on its machine have the cores they want,
  /// or while the other workers there, if it is one, wait far less for each that they have.
  bool is_limited(const DoctorFacts::Node& node) const {
    if (node.wanted < kLimitedCores || node.wanted < kLimitedWaits * node.used) return false;
    for (const DoctorFacts::Machine& machine : f_.machines) {
      if (machine.id != node.machine) continue;
      const DoctorFacts::Machine others = without(machine, node);
      if (others.used > 0.0 && others.wanted < kWaitsForCores * others.used) return true;
    }
    bool is_worker = false;
    double used = 0.0, wanted = 0.0;
    for (const auto& worker : f_.workers) {
      is_worker = is_worker || &worker.node == &node;
      if (&worker.node == &node || worker.node.machine != node.machine) continue;
      used += worker.node.used;
      wanted += worker.node.wanted;
    }
    return is_worker && used > 0.0 && node.wanted * used >= kLimitedTimes * wanted * node.used;
  }
  static bool lacks_cores(const DoctorFacts::Machine& machine) {
    return machine.cores > 0.0 && machine.wanted > 0.0 &&
           machine.wanted >= kWaitsForCores * machine.used &&
           machine.used + machine.wanted >= kBusyMachine * machine.cores;
  }

  /// The first few of them.
  static std::string first_names(const std::vector<std::string>& names) {
    const auto end =
        names.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(names.size(), 5));
    return absl::StrCat(absl::StrJoin(names.begin(), end, ", "), end == names.end() ? "" : ", ...");
  }

  void cpu() {
    for (const auto* node : nodes_) {
      if (!is_limited(*node)) continue;
      limited_.push_back(node);
      if (accusation_of(node->name) != nullptr) continue;  // which tells it
      add(Finding::Kind::kCpu, node->name,
          node->wanted / (node->used + node->wanted) * std::max(compute_s_, stall_s_),
          absl::StrFormat("%s uses %.2f cores and waits for %.2f more, while others on its "
                          "machine get theirs: it does not get to run",
                          node->name, node->used, node->wanted),
          absl::StrCat("see what keeps it from running: ", kWhatLimitsCpu));
    }
    const double waits_for_worker_s = slow_worker_ ? slow_worker_->cost_s : 0.0;
    for (DoctorFacts::Machine machine : f_.machines) {
      for (const auto* node : nodes_) {
        // Whose own finding tells it.
        const bool is_told =
            std::ranges::find(limited_, node) != limited_.end() ||
            (slow_worker_ && &slow_worker_->worker->node == node && waits_for_cores(*node));
        if (is_told && node->machine == machine.id) machine = without(machine, *node);
      }
      if (!lacks_cores(machine)) continue;
      const double share = machine.wanted / (machine.used + machine.wanted);
      // What computes would be done so much earlier; what waits for a network would not. But who
      // waits for a core takes no messages either: that is what is left of the waiting for cores,
      // as far as nodes are there.
      const auto processes = static_cast<double>(machine.processes.size());
      const double waits_s = std::min(machine.wanted / processes, 1.0) * f_.iteration_s;
      const double late_s = std::clamp(waits_s - share * compute_s_, 0.0,
                                       std::max(stall_s_ - waits_for_worker_s, 0.0)) *
                            std::min(processes / static_cast<double>(nodes_.size()), 1.0);
      late_for_cores_s_ += late_s;
      add(Finding::Kind::kCpu, absl::StrJoin(machine.processes, ", "), share * compute_s_ + late_s,
          absl::StrFormat("the machine of %s has %.0f cores: these processes use %.2f and wait for "
                          "%.2f more",
                          absl::StrJoin(machine.processes, ", "), machine.cores, machine.used,
                          machine.wanted),
          "run fewer processes there, give workers fewer --threads, or see what else the machine "
          "does (top) and whether a limit keeps them from its cores (docker --cpus, cgroups)");
    }
  }

  struct SlowWorker {
    const DoctorFacts::Worker* worker = nullptr;
    double takes = 0.0, usual = 0.0, cost_s = 0.0;
    bool in_bursts = false;  ///< and otherwise as quick as the others
  };
  using Compute = double DoctorFacts::Worker::*;

  /// Computes longer than the others, who then wait for it.
  std::optional<SlowWorker> slow_worker() const {
    // Medians hide one that is stopped now and then; means, where all have their bad moments, one
    // that is a little slower all the time.
    std::optional<SlowWorker> slow = slow_worker_by(&DoctorFacts::Worker::compute_mean_s);
    return slow ? slow : slow_worker_by(&DoctorFacts::Worker::compute_s);
  }
  std::optional<SlowWorker> slow_worker_by(Compute by) const {
    if (f_.workers.size() < 2) return std::nullopt;
    const DoctorFacts::Worker& slowest =
        *std::max_element(f_.workers.begin(), f_.workers.end(),
                          [by](const auto& a, const auto& b) { return a.*by < b.*by; });
    SlowWorker slow{
        .worker = &slowest, .takes = slowest.*by, .usual = usual_of_others(slowest, by)};
    slow.cost_s = slow.takes - slow.usual;
    const double limit = kSlowWorker + kScatterWorker * shortage(slowest.node);
    if (slow.takes < limit * slow.usual || !worth(slow.cost_s)) return std::nullopt;
    const double quick = slowest.compute_quick_s;
    slow.in_bursts =
        slow.takes >= kBursts * quick &&
        quick < kSlowWorker * usual_of_others(slowest, &DoctorFacts::Worker::compute_quick_s);
    if (slow.in_bursts) {
      // Whatever else it does stands still as long, and the others wait for that, too.
      const double wait_s =
          usual_of_others(slowest, &DoctorFacts::Worker::stall_s) - slowest.stall_s;
      slow.cost_s = std::max(slow.cost_s, std::min(stands_s(slow), wait_s));
    }
    return slow;
  }
  /// Of an iteration, a process stands still as much as its computing takes longer than the
  /// others'.
  double stands_s(const SlowWorker& slow) const {
    return (1.0 - slow.usual / slow.takes) * f_.iteration_s;
  }
  double usual_of_others(const DoctorFacts::Worker& than, Compute by) const {
    std::vector<double> others;
    for (const auto& worker : f_.workers) {
      if (&worker != &than) others.push_back(worker.*by);
    }
    return median(others);
  }

  struct SlowLink {
    const DoctorFacts::Node* node = nullptr;
    bool sends = false;
    double rate = 0.0, usual = 0.0, busy_s = 0.0;
    double limit = 0.0;  ///< times that it may be slower
  };

  /// One node whose best stream, in a direction, is slow where the others' best are not.
  std::optional<SlowLink> slow_link() const {
    std::optional<SlowLink> worst;
    // Within a host no link has its messages, and none is slow.
    if (f_.one_host || !worth(stall_s_)) return worst;
    for (const bool sends : {true, false}) {
      for (const auto* node : nodes_) {
        const auto& rate = sends ? node->send_bytes_per_s : node->receive_bytes_per_s;
        const double busy_s = sends ? node->send_s : node->receive_s;
        if (!rate || !worth(busy_s)) continue;
        std::vector<double> others;
        for (const auto* other : nodes_) {
          const auto& theirs = sends ? other->send_bytes_per_s : other->receive_bytes_per_s;
          if (other != node && theirs) others.push_back(*theirs);
        }
        // One other tells nothing: it may be slow because this one's other end is.
        const double usual = median(others);
        const double limit = kSlowLink + kScatterLink * shortage(*node);
        if (others.size() < 2 || *rate * limit > usual) continue;
        if (!worst || busy_s > worst->busy_s) worst = {node, sends, *rate, usual, busy_s, limit};
      }
    }
    return worst;
  }

  /// What is on its way to or from a process waits while that stands still. Whether its link is as
  /// good as any in the rest of the time.
  bool explains(const SlowWorker& worker, const SlowLink& link) const {
    const double moves_s = link.busy_s - stands_s(worker);
    return !worth(moves_s) || link.rate * link.busy_s / moves_s * link.limit > link.usual;
  }

  /// A process that often stands still reads and writes late too, and one whose link is slow may
  /// compute a little longer by chance: of one node, the worker has the word where it explains the
  /// link, and else the greater loss. Whether a link is accused.
  bool one_node() {
    std::optional<SlowWorker> worker = slow_worker();
    std::optional<SlowLink> link = slow_link();
    if (link && is_limited(*link->node)) link.reset();  // cpu() tells it
    if (worker && link && link->node == &worker->worker->node) {
      if (link->busy_s > worker->cost_s && !explains(*worker, *link)) {
        worker.reset();
      } else {
        link.reset();
      }
    }
    if (worker) accuse(*worker);
    slow_worker_ = worker;
    if (link) {
      add(Finding::Kind::kLink, link->node->name, std::min(link->busy_s, longest_stall()),
          absl::StrFormat("the link of %s %s %s, those of the other nodes %s: its messages are on "
                          "their way for %s of each iteration",
                          link->node->name, link->sends ? "sends" : "receives",
                          bits_text(link->rate), bits_text(link->usual),
                          percent(link->busy_s / f_.iteration_s)),
          "look at its network card, cable and switch port (ethtool: speed, duplex, errors), and "
          "for other traffic on it");
    }
    return link.has_value();
  }

  void accuse(const SlowWorker& slow) {
    const DoctorFacts::Node& node = slow.worker->node;
    std::string what =
        slow.in_bursts ? absl::StrFormat(
                             "%s computes %s per iteration on average, the others %s, though its "
                             "quick iterations take %s: it does not get to run in between",
                             node.name, seconds_text(slow.takes), seconds_text(slow.usual),
                             seconds_text(slow.worker->compute_quick_s))
                       : absl::StrFormat("%s computes %s per iteration, the others %s", node.name,
                                         seconds_text(slow.takes), seconds_text(slow.usual));
    const bool waits = waits_for_cores(node);
    if (waits) {
      absl::StrAppendFormat(&what, "; it uses %.2f cores and waits for %.2f more", node.used,
                            node.wanted);
    }
    add(Finding::Kind::kWorker, node.name, slow.cost_s,
        absl::StrCat(what, slow.in_bursts || waits ? "; " : ": ", "they wait for it"),
        slow.in_bursts || waits
            ? absl::StrCat("see what keeps it from running: ", kWhatLimitsCpu)
            : "look on its machine for what else runs there, a slower or throttled processor, or "
              "fewer --threads than the others have");
  }

  /// By their own counters, which reach further back than the trace: where all of them throttle, or
  /// share their machines with others since, no worker is slower than the next.
  void slower() {
    std::vector<std::string> names, texts;
    double cost = 0.0, celsius = 0.0;
    for (const DoctorFacts::Daemon& daemon : f_.daemons) {
      if (!daemon.compute_before_s || !daemon.compute_now_s) continue;
      const double now = *daemon.compute_now_s, before = *daemon.compute_before_s;
      const double limit = kSlowWorker + kScatterWorker * shortage_of(daemon.name);
      if (now < limit * before || !worth(now - before)) continue;
      if (Finding* known = accusation_of(daemon.name); known != nullptr) {
        absl::StrAppend(&known->what, "; it took ", seconds_text(before), " on average before");
        continue;
      }
      names.push_back(daemon.name);
      texts.push_back(absl::StrCat(daemon.name, " (", seconds_text(now), ", ", seconds_text(before),
                                   " on average before)"));
      cost = std::max(cost, now - before);
      celsius = std::max(celsius, daemon.gpu_celsius.value_or(0.0));
    }
    if (names.empty()) return;
    const bool all = names.size() == f_.workers.size();
    add(Finding::Kind::kSlower, all && names.size() > 1 ? "" : absl::StrJoin(names, ", "), cost,
        absl::StrCat("computing takes longer than it did in this epoch until now: ",
                     absl::StrJoin(texts, ", ")),
        absl::StrCat(
            "see what else runs there since (top), and whether processors or GPUs throttle",
            celsius > 0.0 ? absl::StrFormat(" (the hottest GPU is at %.0f degrees)", celsius)
                          : ""));
  }

  Finding* accusation_of(const std::string& worker) {
    for (Finding& finding : findings_) {
      if (finding.kind == Finding::Kind::kWorker && finding.guilty == worker) return &finding;
    }
    return nullptr;
  }
  double shortage_of(const std::string& name) const {
    for (const auto* node : nodes_) {
      if (node->name == name) return shortage(*node);
    }
    return 0.0;
  }

  double longest_stall() const {
    double longest = 0.0;
    for (const auto& worker : f_.workers) longest = std::max(longest, worker.stall_s);
    return longest;
  }

  void input() {
    std::vector<std::string> names;
    double cost = 0.0;
    for (const auto& worker : f_.workers) {
      // Samples of one that does not get to run are late, too.
      const bool is_slow = slow_worker_ && slow_worker_->worker == &worker;
      if (std::ranges::find(limited_, &worker.node) != limited_.end()) continue;
      const double runs = is_slow ? slow_worker_->usual / slow_worker_->takes : 1.0;
      if (!worth(worker.input_s * runs)) continue;
      names.push_back(worker.node.name);
      cost = std::max(cost, worker.input_s);
    }
    if (names.empty()) return;
    const bool all = names.size() == f_.workers.size();
    add(Finding::Kind::kInput, all && names.size() > 1 ? "" : absl::StrJoin(names, ", "), cost,
        absl::StrFormat("%s %s up to %s of an iteration for samples",
                        all && names.size() > 1 ? "all workers" : absl::StrJoin(names, ", "),
                        names.size() > 1 ? "wait" : "waits", percent(cost / f_.iteration_s)),
        "give it more --data-threads, a faster disk for the data, or pack the samples into records "
        "(poseidon data pack)");
  }

  /// One that holds more than its part and is kept busy by it.
  void servers() {
    if (f_.servers.size() >= 2) {
      double mean = 0.0;
      for (const auto& server : f_.servers) {
        mean += server.shard_bytes / static_cast<double>(f_.servers.size());
      }
      const auto& fullest = *std::max_element(
          f_.servers.begin(), f_.servers.end(),
          [](const auto& a, const auto& b) { return a.shard_bytes < b.shard_bytes; });
      const double busy = std::max({fullest.busy_s, fullest.node.send_s, fullest.node.receive_s});
      const double extra = busy * (1.0 - mean / std::max(fullest.shard_bytes, 1.0));
      if (fullest.shard_bytes >= kUnevenShard * mean && worth(extra) && worth(stall_s_) &&
          !accused(fullest.node.name)) {
        add(Finding::Kind::kServer, fullest.node.name, std::min(extra, stall_s_),
            absl::StrFormat("%s holds %s of parameters, a server's part would be %s: it "
                            "is busy for %s of each iteration",
                            fullest.node.name, bytes_text(fullest.shard_bytes), bytes_text(mean),
                            percent(busy / f_.iteration_s)),
            "use smaller chunks (sync.chunk_bytes), or drop a sync.plan that pins them");
        return;
      }
    }
    for (const auto& server : f_.servers) {
      if (server.busy_s < kBusyServer * f_.iteration_s || !worth(stall_s_)) continue;
      add(Finding::Kind::kServer, server.node.name, std::min(server.busy_s, stall_s_),
          absl::StrFormat("%s sums and steps for %s of each iteration", server.node.name,
                          percent(server.busy_s / f_.iteration_s)),
          "add servers, or let large layers go by SFB (sync.scheme \"auto\")");
    }
  }

  bool accused(const std::string& name) const {
    return std::any_of(findings_.begin(), findings_.end(),
                       [&](const Finding& finding) { return finding.guilty == name; });
  }

  /// Nobody's link is worse than the others', and all wait.
  void network() {
    const DoctorFacts::Node* busiest = nullptr;
    double busy_s = 0.0, bytes = 0.0;
    for (const auto* node : nodes_) {
      for (const bool sends : {true, false}) {
        const double here = sends ? node->send_s : node->receive_s;
        if (here <= busy_s) continue;
        busiest = node;
        busy_s = here;
        bytes = sends ? node->sent_bytes : node->received_bytes;
      }
    }
    double least_stall = std::numeric_limits<double>::infinity();
    for (const auto& worker : f_.workers) least_stall = std::min(least_stall, worker.stall_s);
    if (busiest == nullptr || busy_s < kNetworkBusy * f_.iteration_s ||
        least_stall < kNetworkStall * f_.iteration_s) {
      return;
    }
    // Nor does who waits for a core send or take any.
    const double cost_s = stall_s_ - late_for_cores_s_;
    if (!worth(cost_s)) return;
    // A worker that is waited for makes messages late, not slow.
    if (!limited_.empty() ||
        std::any_of(findings_.begin(), findings_.end(), [](const Finding& finding) {
          return finding.kind == Finding::Kind::kWorker || finding.kind == Finding::Kind::kServer;
        })) {
      return;
    }
    const double has = bytes / busy_s;
    const double needs = bytes / std::max(compute_s_, 1e-6);
    std::vector<std::string> remedies = {absl::StrFormat(
        "it takes about %s per node to hide it behind computing", bits_text(needs))};
    std::vector<std::string> might_go_by_sfb, by_sfb;
    double might_bytes = 0.0, ps_bytes = 0.0;
    for (const auto& layer : f_.layers) {
      if (layer.by_sfb) {
        by_sfb.push_back(layer.name);
        continue;
      }
      ps_bytes += layer.bytes;
      if (layer.fully_connected_by_ps) {
        might_go_by_sfb.push_back(layer.name);
        might_bytes += layer.bytes;
      }
    }
    // Factors are float32, and grow with the batch. `bytes` go one way of a node, as a share of
    // what goes by servers does.
    const bool is_by_ps = by_sfb.empty() || ps_bytes > 0.5 * bytes;
    if (!f_.sixteen_bits && is_by_ps) {
      remedies.emplace_back("sync.wire_dtype \"bf16\" halves the bytes");
    }
    if (!is_by_ps) {
      remedies.push_back(absl::StrCat("most of it may be factors (", first_names(by_sfb),
                                      "): a smaller batch makes them smaller, poseidon plan tells "
                                      "what scheme \"ps\" would move"));
    }
    if (might_bytes > 0.3 * ps_bytes && f_.workers.size() > 1) {
      remedies.push_back(absl::StrFormat(
          "fully connected layers (%s) are %s of what goes by servers: see whether SFB moves fewer "
          "(sync.scheme \"auto\", poseidon plan)",
          first_names(might_go_by_sfb), percent(might_bytes / ps_bytes)));
    }
    // Where one node is an end of every message, no stream tells its link from the network. Factors
    // go from worker to worker.
    std::string links = "no node's link is worse than the others'";
    const std::string shared = f_.workers.size() == 1 ? f_.workers.front().node.name
                               : f_.servers.size() == 1 && by_sfb.empty()
                                   ? f_.servers.front().node.name
                                   : "";
    if (f_.one_host) {
      links =
          "all nodes are on one machine: no network is between them, but its cores and its memory";
      remedies.front() =
          "see whether a process there is stopped or short of CPU (top), and whether they send "
          "through shared memory";
    } else if (!shared.empty()) {
      links = absl::StrCat("all of them pass the link of ", shared,
                           ", so it may be this one alone that is slow");
      remedies.insert(remedies.begin(),
                      absl::StrCat("look whether the link of ", shared, " gives what it should"));
    }
    const double times = needs / std::max(has, 1.0);
    if (times > 1.0 && f_.batch_size > 0 && is_by_ps) {
      remedies.push_back(
          absl::StrFormat("a batch of about %.0f in place of %d gives it the time it needs",
                          std::ceil(times * static_cast<double>(f_.batch_size)), f_.batch_size));
    }
    add(Finding::Kind::kNetwork, "", cost_s,
        absl::StrFormat("%s too small for the job: every worker waits, %s of each "
                        "iteration on average; %s go one way of %s per iteration and get %s "
                        "there, %s",
                        f_.one_host ? "what moves messages is" : "the network is",
                        percent(stall_s_ / f_.iteration_s), bytes_text(bytes), busiest->name,
                        bits_text(has), links),
        absl::StrJoin(remedies, "; "));
  }

  /// Most waiting is for one layer, and nothing else explains it.
  void layer() {
    if (f_.layers.size() < 2 || !worth(stall_s_)) return;
    const auto& worst =
        *std::max_element(f_.layers.begin(), f_.layers.end(),
                          [](const auto& a, const auto& b) { return a.stall_s < b.stall_s; });
    if (worst.stall_s < kStragglerShare * stall_s_ || !worth(worst.stall_s)) return;
    add(Finding::Kind::kLayer, worst.name, worst.stall_s,
        absl::StrFormat("workers wait %s per iteration for layer %s (%s%s), %s of all their "
                        "waiting",
                        seconds_text(worst.stall_s), worst.name, bytes_text(worst.bytes),
                        worst.by_sfb ? ", by SFB" : "", percent(worst.stall_s / stall_s_)),
        worst.by_sfb ? "see what it costs by servers (sync.scheme \"ps\", poseidon plan); poseidon "
                       "trace shows "
                       "whether its factors come late or its product takes long"
        : worst.fully_connected_by_ps
            ? "see whether it had better go by SFB (sync.scheme \"auto\", poseidon plan)"
            : "smaller chunks (sync.chunk_bytes) spread it over more servers; poseidon trace shows "
              "where its chunks spend their time");
  }

  void disks() {
    std::vector<double> rates;
    for (const auto& server : f_.servers) {
      if (server.disk_bytes_per_s > 0.0) rates.push_back(server.disk_bytes_per_s);
    }
    for (const auto& server : f_.servers) {
      const double rate = server.disk_bytes_per_s;
      if (rate <= 0.0 && server.disk_waiting <= 0.0) continue;
      std::vector<double> others;
      for (const auto& other : f_.servers) {
        if (&other != &server && other.disk_bytes_per_s > 0.0) {
          others.push_back(other.disk_bytes_per_s);
        }
      }
      const double usual = median(others);
      const bool slower = !others.empty() && rate * kSlowDisk < usual;
      const bool at_limit = server.disk_share >= kBusyDisk;
      // Slow but idle is nobody's trouble: a small checkpoint is all overhead.
      if (!at_limit &&
          !(slower && (server.disk_waiting > 0.0 || server.disk_share >= kWorthShare))) {
        continue;
      }
      if (!others.empty() && !slower && some_disk_is_slower(server)) continue;
      add(Finding::Kind::kDisk, server.node.name, 0.0,
          absl::StrFormat(
              "the disk of %s takes %s%s; it writes checkpoints %s of the time and "
              "%.0f pieces wait: checkpoints take longer than they should (training itself goes "
              "on)",
              server.node.name, scaled_text(rate, "B/s"),
              others.empty() ? ""
                             : absl::StrCat(", the other servers' ", scaled_text(usual, "B/s")),
              percent(server.disk_share), server.disk_waiting),
          "look at the disk of its --data-dir (iostat -x: utilisation, errors; what else writes "
          "there), put it on a faster one, or ask for checkpoints less often "
          "(checkpoint.every_iterations)");
    }
  }

  bool some_disk_is_slower(const DoctorFacts::Server& than) const {
    return std::any_of(f_.servers.begin(), f_.servers.end(), [&](const auto& server) {
      return server.disk_bytes_per_s > 0.0 &&
             server.disk_bytes_per_s * kSlowDisk < than.disk_bytes_per_s;
    });
  }

  void nothing_else() {
    if (worth(stall_s_)) {
      std::vector<std::string> waiting;
      for (const auto& worker : f_.workers) {
        if (worth(worker.stall_s)) waiting.push_back(worker.node.name);
      }
      add(Finding::Kind::kUnknown, "", stall_s_,
          absl::StrFormat(
              "%d of %d workers (%s) wait %s of an iteration for parameters, and no link, "
              "worker, server or core stands out",
              waiting.size(), f_.workers.size(), absl::StrJoin(waiting, ", "),
              percent(stall_s_ / f_.iteration_s)),
          "take a trace (poseidon trace) and see what happens while they wait");
    } else {
      std::string what = absl::StrFormat(
          "nothing limits it but compute: %s of each iteration of %s is forward and "
          "backward, %s waiting",
          percent(std::min(compute_s_ / f_.iteration_s, 1.0)), seconds_text(f_.iteration_s),
          percent(stall_s_ / f_.iteration_s));
      std::string remedy = "more workers or faster ones make it faster";
      if (const std::optional<double> utilization = gpu_utilization();
          utilization && *utilization < kIdleGpu) {
        absl::StrAppend(&what, "; GPUs run kernels for ", percent(*utilization), " of the time");
        remedy =
            "a larger batch_size gives GPUs more to do at a time; poseidon trace shows what "
            "they wait for";
      }
      add(Finding::Kind::kCompute, "", compute_s_, std::move(what), std::move(remedy));
    }
    std::rotate(findings_.begin(), findings_.end() - 1, findings_.end());
  }

  /// Mean over the workers that tell theirs.
  std::optional<double> gpu_utilization() const {
    double sum = 0.0, count = 0.0;
    for (const DoctorFacts::Daemon& daemon : f_.daemons) {
      if (!daemon.gpu_utilization) continue;
      sum += *daemon.gpu_utilization;
      count += 1.0;
    }
    return count > 0.0 ? std::optional(sum / count) : std::nullopt;
  }

  const DoctorFacts& f_;
  std::vector<const DoctorFacts::Node*> nodes_;  ///< workers, then servers
  double stall_s_ = 0.0, compute_s_ = 0.0;       ///< means over workers
  double late_for_cores_s_ = 0.0;                ///< of the stalls
  std::vector<const DoctorFacts::Node*> limited_;
  std::optional<SlowWorker> slow_worker_;  ///< as accused
  std::vector<Finding> findings_;
};

}  // namespace

const char* finding_name(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kLink:
      return "link";
    case Finding::Kind::kWorker:
      return "worker";
    case Finding::Kind::kInput:
      return "input";
    case Finding::Kind::kDisk:
      return "disk";
    case Finding::Kind::kServer:
      return "server";
    case Finding::Kind::kNetwork:
      return "network";
    case Finding::Kind::kCpu:
      return "cpu";
    case Finding::Kind::kLayer:
      return "layer";
    case Finding::Kind::kSlower:
      return "slower";
    case Finding::Kind::kCompute:
      return "compute";
    case Finding::Kind::kStore:
      return "store";
    case Finding::Kind::kSpace:
      return "space";
    case Finding::Kind::kCheckpoint:
      return "checkpoint";
    case Finding::Kind::kStreams:
      return "streams";
    case Finding::Kind::kPaused:
      return "paused";
    case Finding::Kind::kPath:
      return "path";
    case Finding::Kind::kSamples:
      return "samples";
    case Finding::Kind::kRefused:
      return "refused";
    case Finding::Kind::kCertificate:
      return "certificate";
    case Finding::Kind::kUnknown:
      break;
  }
  return "unknown";
}

std::vector<Finding> diagnose(const DoctorFacts& facts) { return Doctor(facts).run(); }

}  // namespace poseidon
