#include "tests/sim/protocol_sim.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/checkpoint.h"
#include "common/file_io.h"
#include "common/random.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"
#include "tests/sim/protocol_checks.h"
#include "tests/sim/protocol_scenario.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/truth.h"

namespace poseidon::sim {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTraceKept = 60;
constexpr std::uint64_t kMaxManifestBytes = 1 << 24;
/// How often the job is looked at, and its new checkpoints.
constexpr Milliseconds kLook{100};
/// Deadlines of the job, shorter than the real ones, so that a run that needs several ends.
constexpr Milliseconds kPreparingTimeout{60000}, kProgressTimeout{90000}, kHaltingTimeout{20000},
    kSavingTimeout{30000}, kLastCheckpointTimeout{30000}, kRecoveryTimeout{60000};
/// What one recovery may take with all its deadlines, and what training takes.
constexpr Nanoseconds kOneRecovery =
    kHaltingTimeout + kSavingTimeout + 2 * kPreparingTimeout + kProgressTimeout + kRecoveryTimeout;
constexpr Nanoseconds kTraining{std::chrono::minutes(3)};
constexpr Milliseconds kRestartPause{1000};
constexpr std::int64_t kStepLimit = 3'000'000;

fs::path scratch_directory() {
  std::error_code error;
  const fs::path memory = "/dev/shm";
  const fs::path base = fs::is_directory(memory, error) ? memory : fs::temp_directory_path();
  return base / absl::StrCat("poseidon-protocol-sim-", getpid());
}

/// What every part of the product logs, at virtual times.
class Trace final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  Trace(const MemoryNetwork* network, bool all) : network_(network), all_(all) {}
  void add(const std::string& text) {
    lines_.push_back(absl::StrFormat("%9.3f s  %s", seconds(network_->now()), text));
    if (!all_ && lines_.size() > kTraceKept) lines_.pop_front();
  }
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    add(std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

  const MemoryNetwork* const network_;
  const bool all_;
  std::deque<std::string> lines_;
};

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
  World(std::uint64_t seed, bool verbose)
      : scenario_(draw_protocol_scenario(seed)),
        random_(mix_seed(seed, 12)),
        network_(mix_seed(seed, 13), scenario_.network),
        operator_(network_.endpoint("operator")),
        trace_(std::make_shared<Trace>(&network_, verbose)),
        logger_(std::make_shared<spdlog::logger>("sim", trace_)) {
    logger_->set_level(verbose ? spdlog::level::debug : spdlog::level::info);
    before_ = spdlog::default_logger();
    spdlog::set_default_logger(logger_);
    disk_.state = scratch_directory() / absl::StrCat(seed);
    std::error_code ignored;
    fs::remove_all(disk_.state, ignored);
    network_.keep_order(kCoordinatorAddress);
    network_.keep_order(kUploadAddress);
  }
  ~World() {
    for (const auto& machine : machines_) kill(*machine, false);
    kill_coordinator();
    spdlog::set_default_logger(before_);
    std::error_code ignored;
    fs::remove_all(disk_.state, ignored);
  }
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
  void part_for_a_while(const std::string& one, const std::string& other, Nanoseconds time);
  void on_control(bool sent, const std::string& what);
  void on_roll_back(Iteration iteration, Iteration done);
  bool may_fail(const std::string& why);

  // ---- the operator ----
  void submit();
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
  std::vector<Fault> waiting_;  ///< for a message
  std::map<std::string, std::int64_t> happened_;
  std::vector<FaultKind> troubles_;  ///< that have happened, without the operator's saves
  Nanoseconds last_trouble_{0};      ///< when the last fault will be over
  bool submitted_ = false;
  std::string run_directory_;
  std::set<std::string> seen_checkpoints_;
  std::optional<std::string> end_;  ///< "done", or why not
};

// ---- processes ----

Machine& World::add_machine(bool is_server) {
  auto machine = std::make_unique<Machine>();
  const std::size_t number = machines_.size();
  machine->is_server = is_server;
  machine->name = absl::StrCat(is_server ? "server" : "worker", "-", number);
  const std::size_t hosted = is_server ? number : number / scenario_.workers_per_host;
  const bool apart = is_server && !scenario_.servers_beside_workers;
  machine->address = absl::StrCat(apart ? "10.0.1." : "10.0.2.", 1 + hosted, ":", 4000 + number);
  network_.keep_order(machine->address + kStoreSuffix);
  if (is_server) {
    machine->disk = std::make_shared<SimDisk>();
    machine->disk->identity = absl::StrFormat("%032x", 1000 + number);
  }
  machines_.push_back(std::move(machine));
  return *machines_.back();
}

std::string World::process_of(const std::string& name) const {
  if (name == "coordinator") return coordinator_process_;
  for (const auto& machine : machines_) {
    if (machine->name == name) return machine->process;
  }
  return "";
}

void World::start(Machine& machine) {
  if (machine.gone || !machine.process.empty()) return;
  ++machine.processes;
  machine.process = absl::StrCat(machine.name, ".", machine.processes);
  Transport& transport = network_.endpoint(machine.process);
  for (const auto& [one, other] : parted_) {
    if (one != machine.name && other != machine.name) continue;
    network_.part(machine.process, process_of(one == machine.name ? other : one));
  }
  note(absl::StrCat("start ", machine.process));
  // A service is started again when it ends by itself.
  const auto ended = [this, &machine, which = machine.processes](const absl::Status& status) {
    later(Nanoseconds(0), [this, &machine, which, text = status.ToString()] {
      if (machine.processes != which || machine.process.empty()) return;
      note(absl::StrCat(machine.process, " ends: ", text));
      kill(machine, false);
      later(kRestartPause, [this, &machine] { start(machine); });
    });
  };
  const std::uint64_t seed = random_.next();
  const auto process_id = static_cast<std::uint32_t>(machine.processes);
  if (machine.is_server) {
    machine.server =
        std::make_unique<SimServer>(&transport, machine.address, process_id, machine.disk, seed,
                                    scenario_.pending_limit_bytes, ended);
  } else {
    machine.worker = std::make_unique<SimWorker>(
        &transport,
        SimWorkerOptions{.address = machine.address,
                         .process_id = process_id,
                         .seed = seed,
                         .max_compute = scenario_.max_compute,
                         .server_timeout = scenario_.server_timeout,
                         .pending_limit_bytes = scenario_.pending_limit_bytes},
        &truth_, ended);
  }
}

void World::kill(Machine& machine, bool silently) {
  if (machine.process.empty()) return;
  network_.kill(machine.process, silently);
  machine.process.clear();
  machine.worker.reset();
  machine.server.reset();
}

void World::start_coordinator() {
  if (coordinator_ != nullptr) return;
  coordinator_process_ = absl::StrCat("coordinator.", ++coordinators_);
  note(absl::StrCat("start ", coordinator_process_));
  Transport& transport = network_.endpoint(coordinator_process_);
  for (const auto& [one, other] : parted_) {
    if (one != "coordinator" && other != "coordinator") continue;
    network_.part(coordinator_process_, process_of(one == "coordinator" ? other : one));
  }
  SimCoordinatorOptions options;
  options.seed = random_.next();
  options.slowest_disk = scenario_.slowest_disk;
  JobRunOptions& job = options.cluster.job;
  job.preparing_timeout = kPreparingTimeout;
  job.progress_timeout = kProgressTimeout;
  job.upload_timeout = kProgressTimeout;
  job.halting_timeout = kHaltingTimeout;
  job.saving_timeout = kSavingTimeout;
  job.last_checkpoint_timeout = kLastCheckpointTimeout;
  job.recovery_timeout = kRecoveryTimeout;
  job.checkpoints.timeout = kSavingTimeout;
  job.change_pause = Milliseconds(2000);
  job.growth_delay = Milliseconds(500);
  options.probe = [this](bool sent, const std::string& what) { on_control(sent, what); };
  options.assigns = [this](Epoch epoch) { truth_.on_assign(epoch); };
  options.rolled_back = [this](Iteration iteration, Iteration done) {
    on_roll_back(iteration, done);
  };
  coordinator_ = std::make_unique<SimCoordinator>(&transport, options, &disk_);
}

void World::kill_coordinator() {
  if (coordinator_ == nullptr) return;
  network_.kill(coordinator_process_, false);
  coordinator_.reset();
}

std::vector<Machine*> World::machines(bool servers) {
  std::vector<Machine*> found;
  for (const auto& machine : machines_) {
    if (machine->is_server == servers && !machine->gone) found.push_back(machine.get());
  }
  return found;
}

// ---- what goes wrong ----

void World::plan_fault(const Fault& fault) {
  if (fault.message.empty()) {
    later(fault.at, [this, fault] { happen(fault); });
  } else {
    waiting_.push_back(fault);
  }
}

void World::on_control(bool /*sent*/, const std::string& what) {
  const int count = ++said_[what];
  std::erase_if(waiting_, [&](const Fault& fault) {
    if (fault.message != what || fault.count != count) return false;
    later(fault.at, [this, fault] { happen(fault); });
    return true;
  });
}

void World::kill_for_a_while(Machine& machine, const Fault& fault) {
  kill(machine, fault.silently);
  if (fault.comes_back) {
    later(fault.lasts, [this, &machine] { start(machine); });
  } else {
    machine.gone = true;
  }
}

void World::freeze_for_a_while(const std::string& process, Nanoseconds time) {
  network_.freeze(process);
  later(time, [this, process] {
    note(absl::StrCat("thaw ", process));
    network_.thaw(process);
  });
}

void World::part_for_a_while(const std::string& one, const std::string& other, Nanoseconds time) {
  if (one == other || !parted_.emplace(one, other).second) return;
  network_.part(process_of(one), process_of(other));
  later(time, [this, one, other] {
    note(absl::StrCat("join ", one, " and ", other));
    parted_.erase({one, other});
    network_.join(process_of(one), process_of(other));
  });
}

void World::happen(const Fault& fault) {
  if (end_) return;
  const std::vector<Machine*> workers = machines(false);
  const std::vector<Machine*> servers = machines(true);
  const auto pick = [&fault](const std::vector<Machine*>& all) -> Machine* {
    return all.empty() ? nullptr : all[fault.target % all.size()];
  };
  Machine* const worker = pick(workers);
  Machine* const server = pick(servers);
  note(absl::StrCat("fault: ", describe(fault)));
  ++happened_[fault_name(fault.kind)];
  if (fault.kind != FaultKind::kSave) troubles_.push_back(fault.kind);
  last_trouble_ = std::max(last_trouble_, network_.now() + fault.lasts);
  switch (fault.kind) {
    case FaultKind::kKillWorker:
      if (worker != nullptr) kill_for_a_while(*worker, fault);
      return;
    case FaultKind::kFreezeWorker:
      if (worker != nullptr) freeze_for_a_while(worker->process, fault.lasts);
      return;
    case FaultKind::kKillServer:
      if (server != nullptr) kill_for_a_while(*server, fault);
      return;
    case FaultKind::kLoseServer: {
      if (server == nullptr) return;
      kill(*server, fault.silently);
      server->gone = true;
      server->disk->lost = true;
      if (!fault.comes_back) return;
      Machine& other = add_machine(/*is_server=*/true);
      later(fault.lasts, [this, &other] { start(other); });
      return;
    }
    case FaultKind::kFreezeServer:
      if (server != nullptr) freeze_for_a_while(server->process, fault.lasts);
      return;
    case FaultKind::kFillDisk: {
      if (server == nullptr) return;
      server->disk->full = true;
      later(fault.lasts, [disk = server->disk] { disk->full = false; });
      return;
    }
    case FaultKind::kDamage: {
      if (server == nullptr) return;
      for (const auto& [snapshot, pieces] : server->disk->sealed) {
        for (const auto& [piece, chunk] : pieces) {
          if (random_.below(2) == 0) server->disk->damaged.insert({snapshot, piece});
        }
      }
      return;
    }
    case FaultKind::kPart: {
      const Machine& one = *machines_[fault.target % machines_.size()];
      part_for_a_while(
          one.name,
          fault.other == 0 ? "coordinator" : machines_[fault.other % machines_.size()]->name,
          fault.lasts);
      return;
    }
    case FaultKind::kKillCoordinator:
      kill_coordinator();
      later(fault.lasts, [this] { start_coordinator(); });
      return;
    case FaultKind::kFreezeCoordinator:
      freeze_for_a_while(coordinator_process_, fault.lasts);
      return;
    case FaultKind::kNewWorker:
      start(add_machine(/*is_server=*/false));
      return;
    case FaultKind::kSave:
      if (coordinator_ != nullptr && submitted_) {
        v1::RequestCheckpointRequest request;
        request.set_protocol_version(kProtocolVersion);
        (void)coordinator_->cluster().request_checkpoint(request);
      }
      return;
    case FaultKind::kCount:
      return;
  }
}

/// When nothing has happened yet but one node's loss.
void World::on_roll_back(Iteration iteration, Iteration done) {
  note(absl::StrCat("metrics go back to iteration ", iteration, ", ", done, " are made again"));
  if (troubles_.size() != 1 || scenario_.network.cut > 0.0) return;
  const FaultKind kind = troubles_[0];
  const bool is_worker = kind == FaultKind::kKillWorker || kind == FaultKind::kFreezeWorker;
  const bool is_server = kind == FaultKind::kKillServer || kind == FaultKind::kFreezeServer;
  const std::shared_ptr<const Course> course = truth_.newest();
  if (course == nullptr) return;  // no node has even heard of an epoch
  const Scenario& network = course->scenario();
  const auto by_factors = [](const SimLayer& layer) { return layer.by_factors(); };
  // What goes by SFB is in workers alone: one worker is the only one that has it.
  const bool is_only_copy =
      network.workers == 1 && std::any_of(network.layers.begin(), network.layers.end(), by_factors);
  if (is_worker && !is_only_copy && done > 1) {
    truth_.fail(absl::StrCat("a lost worker cost ", done, " iterations"));
  }
  // What was trained while the newest one was written counts, too. A server without a chunk is not
  // missed by the workers, but it is there for no checkpoint.
  const bool trains_without = is_server && !truth_.every_server_is_needed();
  const bool from_checkpoint = is_server || (is_worker && is_only_copy);
  // Where iterations are that fast, one interval ends before the last one's checkpoint is written.
  const Iteration most = 2 * scenario_.checkpoint_every + 2;
  if (from_checkpoint && !trains_without && scenario_.checkpoint_every > 0 && done > most) {
    truth_.fail(absl::StrCat("a lost ", is_server ? "server" : "only worker", " cost ", done,
                             " iterations"));
  }
}

// ---- the operator ----

void World::submit() {
  if (coordinator_ != nullptr) {
    v1::SubmitRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_job_json(scenario_.job_json);
    request.set_workers(scenario_.wanted_workers);
    request.set_servers(scenario_.wanted_servers);
    const absl::StatusOr<v1::SubmitResponse> response = coordinator_->cluster().submit(request);
    if (!response.ok()) {
      truth_.fail(absl::StrCat("submit: ", response.status().ToString()));
      return;
    }
    submitted_ = true;
    run_directory_ = response->run_directory();
    return;
  }
  later(Milliseconds(300), [this] { submit(); });
}

void World::look() {
  later(kLook, [this] { look(); });
  if (coordinator_ == nullptr || !submitted_ || end_) return;
  v1::GetStatusRequest request;
  request.set_protocol_version(kProtocolVersion);
  const absl::StatusOr<v1::GetStatusResponse> status = coordinator_->cluster().status(request);
  POSEIDON_CHECK(status.ok(), "our own protocol");
  look_at_checkpoints();
  if (status->state() == "failed") {
    end_ = status->message();
  } else if (status->state() == "done") {
    end_ = "done";
  } else if (status->state() == "idle") {
    truth_.fail("a coordinator does not know how the job ended");
  }
}

const SimDisk* World::disk_of(const std::string& identity) const {
  for (const auto& machine : machines_) {
    if (machine->disk != nullptr && machine->disk->identity == identity) {
      return machine->disk->lost ? nullptr : machine->disk.get();
    }
  }
  return nullptr;
}

void World::look_at_checkpoints() {
  v1::ListCheckpointsRequest request;
  request.set_protocol_version(kProtocolVersion);
  const auto list = coordinator_->cluster().list_checkpoints(request);
  POSEIDON_CHECK(list.ok(), "our own protocol");
  for (const v1::CheckpointInfo& info : list->committed()) {
    seen_checkpoints_.insert(info.id());
    const fs::path file =
        disk_.state / "checkpoints" / info.job_id() / absl::StrCat(info.id(), ".json");
    const absl::StatusOr<std::string> text = read_file(file, kMaxManifestBytes);
    if (!text.ok()) continue;  // is being removed just now
    const auto manifest = manifest_from_json(*text, file.string());
    if (!manifest.ok()) {
      truth_.fail(std::string(manifest.status().message()));
      return;
    }
    const std::string wrong = check_checkpoint(
        *manifest, truth_, [this](const std::string& identity) { return disk_of(identity); });
    if (!wrong.empty()) truth_.fail(wrong);
  }
}

/// Where a failed job is the right end.
bool World::may_fail(const std::string& why) {
  std::int64_t workers = 0, servers = 0;
  for (const auto& machine : machines_) {
    if (!machine->gone) ++(machine->is_server ? servers : workers);
  }
  const std::int64_t fewest = std::max<std::int64_t>(scenario_.min_workers, 1);
  if (workers < fewest || servers == 0) return true;
  if (absl::StrContains(why, "waits for nodes")) {  // it never began
    return workers < scenario_.wanted_workers || servers < scenario_.wanted_servers ||
           servers < scenario_.replicas;
  }
  const bool loses = scenario_.has(FaultKind::kLoseServer) || scenario_.has(FaultKind::kDamage) ||
                     std::any_of(machines_.begin(), machines_.end(), [](const auto& machine) {
                       return machine->is_server && machine->gone;
                     });
  return loses && (absl::StrContains(why, "STORE_IDENTITY") ||
                   absl::StrContains(why, "no other checkpoint is left") ||
                   absl::StrContains(why, "a checkpoint that can be read") ||
                   absl::StrContains(why, "copies on different servers"));
}

std::string World::check_end() {
  if (*end_ != "done") {
    return may_fail(*end_) ? "" : absl::StrCat("the job failed: ", *end_);
  }
  const std::shared_ptr<const Course> course = truth_.newest();
  if (course == nullptr) return "the job is done, and nobody was assigned to it";
  const absl::StatusOr<JobSpec> job = parse_job(scenario_.job_json);
  POSEIDON_CHECK(job.ok(), "the job that was submitted");
  std::string wrong = check_metrics(disk_.metrics[run_directory_], *course, *job);
  if (wrong.empty()) {
    wrong = check_model(fs::path(run_directory_) / "model.safetensors", *course);
  }
  return wrong;
}

/// By how much paused streams have become more in the last step.
std::int64_t World::new_pauses_by_relays() {
  std::int64_t more = 0;
  for (const auto& machine : machines_) {
    const std::int64_t now = machine->worker == nullptr ? 0 : machine->worker->paused_by_relay();
    more += std::max<std::int64_t>(0, now - std::exchange(machine->paused, now));
  }
  return more;
}

ProtocolOutcome World::run() {
  start_coordinator();
  for (std::uint32_t i = 0; i < scenario_.servers + scenario_.workers; ++i) {
    Machine& machine = add_machine(/*is_server=*/i < scenario_.servers);
    const Nanoseconds at = Milliseconds(static_cast<std::int64_t>(random_.below(800)));
    later(at, [this, &machine] { start(machine); });
  }
  later(Milliseconds(static_cast<std::int64_t>(random_.below(1000))), [this] { submit(); });
  for (const Fault& fault : scenario_.faults) plan_fault(fault);
  look();
  ProtocolOutcome outcome;
  while (!end_ && !truth_.failure() && network_.step()) {
    ++outcome.steps;
    outcome.relay_pauses += new_pauses_by_relays();
    const auto troubles = static_cast<std::int64_t>(happened_.size());
    const Nanoseconds deadline = last_trouble_ + kTraining + (troubles + 1) * kOneRecovery;
    if (network_.now() > deadline) truth_.fail("not ended within the virtual deadline");
    if (outcome.steps > kStepLimit) truth_.fail("too many steps");
  }
  if (!truth_.failure()) {
    const std::string wrong = check_end();
    if (!wrong.empty()) truth_.fail(wrong);
  }
  outcome.ok = !truth_.failure();
  outcome.failure = truth_.failure().value_or("");
  outcome.end = end_.value_or("");
  outcome.description = describe(scenario_);
  outcome.trace = trace_->lines();
  outcome.checkpoints = static_cast<std::int64_t>(seen_checkpoints_.size());
  outcome.epochs = static_cast<std::int64_t>(truth_.epochs());
  outcome.virtual_seconds = seconds(network_.now());
  outcome.faults = happened_;
  return outcome;
}

}  // namespace

ProtocolOutcome simulate_protocol(std::uint64_t seed, bool verbose) {
  return World(seed, verbose).run();
}

}  // namespace poseidon::sim
