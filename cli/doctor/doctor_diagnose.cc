#include "cli/doctor/doctor_diagnose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/doctor/doctor_cores.h"
#include "cli/doctor/doctor_health.h"
#include "cli/doctor/doctor_slow_node.h"
#include "common/base/median.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

/// A disk is slow when the others are faster by this.
constexpr double kSlowDisk = 4.0;
/// ... and writes for at least this share of the time, or has more pieces waiting: a slow but idle
/// disk does no harm.
constexpr double kWorthDisk = 0.1;
/// The network is too small when workers wait for this share of an iteration ...
constexpr double kNetworkStall = 0.3;
/// ... and messages are under way for at least this share of it.
constexpr double kNetworkBusy = 0.5;
/// A disk that writes for this share of the time is at its limit.
constexpr double kBusyDisk = 0.8;
/// A server holds too much when it has this many times the mean.
constexpr double kUnevenShard = 1.5;
/// A server's thread that sums for this share of an iteration is at its limit.
constexpr double kBusyServer = 0.6;
/// A GPU that runs kernels for a smaller share of the time could compute more.
constexpr double kIdleGpu = 0.7;
/// One layer of several is reported when this share of all waiting is for it.
constexpr double kStragglerShare = 0.6;

std::string bits_text(double bytes_per_s) { return scaled_text(bytes_per_s * 8.0, "bit/s"); }
const char* const kWhatLimitsCpu =
    "a limit of its CPU (docker --cpus, a cgroup's quota: cpu.stat counts how often it throttled), "
    "a debugger or another sender of SIGSTOP, or another program on its cores (top)";

std::string short_percent(double share) {
  return absl::StrFormat("%.0f %%", std::min(share, 1.0) * 100);
}

class Doctor {
 public:
  explicit Doctor(const DoctorFacts& facts) : f_(facts), nodes_(nodes_of(facts)) {
    for (const auto& worker : f_.workers) {
      stall_s_ += worker.stall_s / static_cast<double>(f_.workers.size());
      compute_s_ += worker.compute_s / static_cast<double>(f_.workers.size());
    }
  }

  std::vector<Finding> run() {
    if (f_.iteration_s <= 0.0 || f_.workers.empty()) {
      add(Finding::Kind::kUnknown, "", 0.0, "the trace has too few iterations for a diagnosis",
          "run it again while the job trains, with more --iterations; when iterations take "
          "minutes, `poseidon trace --timeout-s` waits longer");
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
  bool worth(double cost_s) const { return is_worth(f_, cost_s); }

  /// The first few of them.
  static std::string first_names(const std::vector<std::string>& names) {
    const auto end =
        names.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(names.size(), 5));
    return absl::StrCat(absl::StrJoin(names.begin(), end, ", "), end == names.end() ? "" : ", ...");
  }

  void cpu() {
    for (const auto* node : nodes_) {
      if (!is_limited(f_, *node)) continue;
      limited_.push_back(node);
      if (accusation_of(node->name) != nullptr) continue;  // which tells it
      add(Finding::Kind::kCpu, node->name,
          node->wanted / (node->used + node->wanted) * std::max(compute_s_, stall_s_),
          absl::StrFormat("%s uses %.2f cores and waits for %.2f more, while other processes on "
                          "its machine have enough: something keeps it from running",
                          node->name, node->used, node->wanted),
          absl::StrCat("see what keeps it from running: ", kWhatLimitsCpu));
    }
    const double waits_for_worker_s = slow_worker_ ? slow_worker_->cost_s : 0.0;
    for (DoctorFacts::Machine machine : f_.machines) {
      for (const auto* node : nodes_) {
        // Its own finding reports it.
        const bool is_told =
            std::ranges::find(limited_, node) != limited_.end() ||
            (slow_worker_ && &slow_worker_->worker->node == node && waits_for_cores(*node));
        if (is_told && node->machine == machine.id) machine = without(machine, *node);
      }
      if (!lacks_cores(machine)) continue;
      const double share = machine.wanted / (machine.used + machine.wanted);
      // Computing would end that much earlier; waiting for a network would not. A process that
      // waits for a core receives no messages either: what remains of the wait is explained by
      // missing cores where its nodes run.
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

  /// A process that often stands still reads and writes late too, and a node with a slow link may
  /// compute a little longer by chance. So for one node the slow worker is reported when it
  /// explains the link, otherwise the greater loss. Returns whether a link is reported.
  bool one_node() {
    std::optional<SlowWorker> worker = slow_worker(f_);
    std::optional<SlowLink> link = slow_link(f_, stall_s_);
    // cpu() tells it.
    if (link && (is_limited(f_, *link->node) || is_starved_by_its_machine(f_, *link->node))) {
      link.reset();
    }
    if (worker && link && link->node == &worker->worker->node) {
      if (link->busy_s > worker->cost_s && !explains(f_, *worker, *link)) {
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
                          short_percent(link->busy_s / f_.iteration_s)),
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
                             "quick iterations take %s: something keeps it from running in between",
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

  /// Uses the workers' own counters, which reach further back than the trace: when all of them
  /// throttle, or share their machines with other programs, no worker is slower than the others.
  void slower() {
    std::vector<std::string> names, texts;
    double cost = 0.0, celsius = 0.0;
    for (const DoctorFacts::Daemon& daemon : f_.daemons) {
      if (!daemon.compute_before_s || !daemon.compute_now_s) continue;
      const double now = *daemon.compute_now_s, before = *daemon.compute_before_s;
      const double limit = limit_of(daemon.name);
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
  double limit_of(const std::string& name) const {
    for (const auto* node : nodes_) {
      if (node->name == name) return slow_worker_limit(f_, node);
    }
    return slow_worker_limit(f_, nullptr);
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
      // A worker that is kept from running reads its samples late too.
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
                        names.size() > 1 ? "wait" : "waits", short_percent(cost / f_.iteration_s)),
        "give it more --data-threads, a faster disk for the data, or pack the samples into records "
        "(poseidon data pack)");
  }

  /// A server that holds more than its part and is busy because of it.
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
                            short_percent(busy / f_.iteration_s)),
            "use smaller chunks (sync.chunk_bytes), or drop a sync.plan that pins them");
        return;
      }
    }
    for (const auto& server : f_.servers) {
      if (server.busy_s < kBusyServer * f_.iteration_s || !worth(stall_s_)) continue;
      add(Finding::Kind::kServer, server.node.name, std::min(server.busy_s, stall_s_),
          absl::StrFormat("%s sums and steps for %s of each iteration", server.node.name,
                          short_percent(server.busy_s / f_.iteration_s)),
          "add servers, or let large layers go by SFB (sync.scheme \"auto\")");
    }
  }

  bool accused(const std::string& name) const {
    return std::any_of(findings_.begin(), findings_.end(),
                       [&](const Finding& finding) { return finding.guilty == name; });
  }

  /// No link is slower than the others, and all workers wait.
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
    // A process that waits for a core does not send or receive either.
    const double cost_s = stall_s_ - late_for_cores_s_;
    if (!worth(cost_s)) return;
    // A slow worker makes messages late, not slow.
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
      remedies.push_back(
          absl::StrFormat("fully connected layers (%s) are %s of what goes by servers: check "
                          "whether SFB moves fewer (sync.scheme \"auto\", poseidon plan)",
                          first_names(might_go_by_sfb), short_percent(might_bytes / ps_bytes)));
    }
    // When one node is an end of every message, streams cannot distinguish its link from the
    // network. Factors go from worker to worker.
    std::string links = "no node's link is worse than the others'";
    const std::string shared = f_.workers.size() == 1 ? f_.workers.front().node.name
                               : f_.servers.size() == 1 && by_sfb.empty()
                                   ? f_.servers.front().node.name
                                   : "";
    if (f_.one_host) {
      links =
          "all nodes are on one machine: they share its cores and memory, without a network "
          "between them";
      remedies.front() =
          "see whether a process there is stopped or short of CPU (top), and whether they send "
          "through shared memory";
    } else if (!shared.empty()) {
      links =
          absl::StrCat("all of them pass the link of ", shared, ", so this link alone may be slow");
      remedies.insert(remedies.begin(),
                      absl::StrCat("check whether the link of ", shared, " reaches its speed"));
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
                        f_.one_host ? "the transport of messages is" : "the network is",
                        short_percent(stall_s_ / f_.iteration_s), bytes_text(bytes), busiest->name,
                        bits_text(has), links),
        absl::StrJoin(remedies, "; "));
  }

  /// One layer causes most of the waiting, and nothing else explains it.
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
                        worst.by_sfb ? ", by SFB" : "", short_percent(worst.stall_s / stall_s_)),
        worst.by_sfb ? "see what it costs by servers (sync.scheme \"ps\", poseidon plan); poseidon "
                       "trace shows "
                       "whether its factors come late or its product takes long"
        : worst.fully_connected_by_ps
            ? "check whether SFB is better for it (sync.scheme \"auto\", poseidon plan)"
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
      // A slow but idle disk does no harm: a small checkpoint is mostly overhead.
      if (!at_limit &&
          !(slower && (server.disk_waiting > 0.0 || server.disk_share >= kWorthDisk))) {
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
              short_percent(server.disk_share), server.disk_waiting),
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
              short_percent(stall_s_ / f_.iteration_s)),
          "take a trace (poseidon trace) and see what happens while they wait");
    } else {
      std::string what = absl::StrFormat(
          "nothing limits it but compute: %s of each iteration of %s is forward and "
          "backward, %s waiting",
          short_percent(std::min(compute_s_ / f_.iteration_s, 1.0)), seconds_text(f_.iteration_s),
          short_percent(stall_s_ / f_.iteration_s));
      std::string remedy = "use more workers, or faster ones";
      if (const std::optional<double> utilization = gpu_utilization();
          utilization && *utilization < kIdleGpu) {
        absl::StrAppend(&what, "; GPUs run kernels for ", short_percent(*utilization),
                        " of the time");
        remedy =
            "a larger batch_size gives GPUs more to do at a time; poseidon trace shows what "
            "they wait for";
      }
      add(Finding::Kind::kCompute, "", compute_s_, std::move(what), std::move(remedy));
    }
    std::rotate(findings_.begin(), findings_.end() - 1, findings_.end());
  }

  /// Mean over the workers that report it.
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
  std::optional<SlowWorker> slow_worker_;  ///< as reported
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
    case Finding::Kind::kNotTraining:
      return "not_training";
    case Finding::Kind::kUnknown:
      break;
  }
  return "unknown";
}

std::vector<Finding> diagnose(const DoctorFacts& facts) { return Doctor(facts).run(); }

}  // namespace poseidon
