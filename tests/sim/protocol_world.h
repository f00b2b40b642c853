#pragma once

// The cluster of one seed: its machines and processes, their faults, and the operator who submits
// and watches the job. Part of protocol_sim.cc and protocol_faults.cc; no other file includes this.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/random.h"
#include "common/transport/memory_transport.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"
#include "tests/sim/protocol_scenario.h"
#include "tests/sim/protocol_sim.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/truth.h"

namespace poseidon::sim {

/// Until a service that has ended is started again.
constexpr Milliseconds kRestartPause{1000};
/// --leave-timeout-s.
constexpr Milliseconds kLeavePatience{20000};

/// What every part of the product logs, at virtual times.
class Trace final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  Trace(const MemoryNetwork* network, bool all) : network_(network), all_(all) {}
  void add(const std::string& text) {
    lines_.push_back(absl::StrFormat("%9.3f s  %s", seconds(network_->now()), text));
    if (!all_ && lines_.size() > kKept) lines_.pop_front();
  }
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }
  /// Iterations that the job said are in no line of the metrics.
  const std::set<Iteration>& missing_lines() const { return missing_lines_; }

 private:
  static constexpr std::size_t kKept = 60;  ///< lines, but where all are wanted
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text(message.payload.data(), message.payload.size());
    add(text);
    constexpr char kGap[] = "metrics.jsonl has nothing of iterations ";
    const std::size_t at = text.find(kGap);
    long first = 0, last = -1;
    if (at != std::string::npos) {
      std::sscanf(text.c_str() + at + sizeof(kGap) - 1, "%ld to %ld", &first, &last);
    }
    for (; first <= last; ++first) missing_lines_.insert(first);
  }
  void flush_() override {}

  const MemoryNetwork* const network_;
  const bool all_;
  std::deque<std::string> lines_;
  std::set<Iteration> missing_lines_;
};

/// In the message of a job that an operator has stopped.
inline constexpr const char* kOperatorsStop = "an operator stopped it";

/// A place where a process runs, one after the other.
struct Machine {
  std::string name;
  std::string process;  ///< of the running one; "" while there is none
  int processes = 0;
  bool is_server = false;
  std::string address;
  std::shared_ptr<SimDisk> disk;
  bool gone = false;  ///< for ever
  std::unique_ptr<SimWorker> worker;
  std::int64_t paused = 0;  ///< streams, by the worker's relay
  std::unique_ptr<SimServer> server;
};

class World {
 public:
  World(ProtocolScenario scenario, std::uint64_t seed, bool verbose);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  ProtocolOutcome run();

 private:
  // ---- processes ----
  Machine& add_machine(bool is_server);
  void start(Machine& machine);
  void kill(Machine& machine, bool silently);
  void start_coordinator();
  void kill_coordinator();
  std::vector<Machine*> machines(bool servers);
  std::string process_of(const std::string& name) const;

  // ---- what goes wrong ----
  void plan_fault(const Fault& fault);
  void happen(const Fault& fault);
  void kill_for_a_while(Machine& machine, const Fault& fault);
  void freeze_for_a_while(const std::string& process, Nanoseconds time);
  void say_goodbye(Machine& machine);
  void drain_for_a_while(const Machine& machine, Nanoseconds time);
  void part_for_a_while(const std::string& one, const std::string& other, Nanoseconds time);
  void on_control(bool sent, const std::string& what);
  bool loses(const std::string& kind);
  void on_roll_back(Iteration iteration, Iteration done);
  bool may_fail(const std::string& why);

  // ---- the operator ----
  void submit();
  bool restore();
  void look();
  void look_at_checkpoints();
  std::string check_end();
  std::int64_t new_pauses_by_relays();
  const SimDisk* disk_of(const std::string& identity) const;
  void later(Nanoseconds delay, std::function<void()> function) {
    operator_.post_after(delay, std::move(function));
  }
  void note(const std::string& text) { trace_->add(absl::StrCat("* ", text)); }

  const ProtocolScenario scenario_;
  SplitMix64 random_;
  MemoryNetwork network_;
  Transport& operator_;
  const std::shared_ptr<Trace> trace_;
  const std::shared_ptr<spdlog::logger> logger_;
  std::shared_ptr<spdlog::logger> before_;
  Truth truth_;
  SimCoordinatorDisk disk_;
  std::unique_ptr<SimCoordinator> coordinator_;
  std::string coordinator_process_;
  int coordinators_ = 0;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::set<std::pair<std::string, std::string>> parted_;  ///< machines
  std::map<std::string, int> said_;
  std::map<std::string, int> data_messages_;  ///< by kind; while some are to be lost
  std::vector<Fault> waiting_;                ///< for a message
  std::map<std::string, std::int64_t> happened_;
  std::vector<FaultKind> troubles_;  ///< that have happened, without the operator's saves
  Nanoseconds last_trouble_{0};      ///< when the last fault will be over
  bool submitted_ = false;
  std::int64_t restored_workers_ = 0;  ///< of the checkpoint from which the job goes on; 0: none
  std::string run_directory_;
  std::set<std::string> seen_checkpoints_;
  std::optional<std::string> end_;  ///< "done", or why not
};

}  // namespace poseidon::sim
