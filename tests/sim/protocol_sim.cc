#include "tests/sim/protocol_sim.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "common/files/file_io.h"
#include "tests/sim/protocol_checks.h"
#include "tests/sim/protocol_world.h"

namespace poseidon::sim {
namespace {

namespace fs = std::filesystem;

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
constexpr Milliseconds kStandstill{10000};
constexpr std::int64_t kStepLimit = 3'000'000;

fs::path scratch_directory() {
  std::error_code error;
  const fs::path memory = "/dev/shm";
  const fs::path base = fs::is_directory(memory, error) ? memory : fs::temp_directory_path();
  return base / absl::StrCat("poseidon-protocol-sim-", getpid());
}

}  // namespace

World::World(ProtocolScenario scenario, std::uint64_t seed, bool verbose)
    : scenario_(std::move(scenario)),
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
  if (!scenario_.lost.empty()) {
    network_.set_loss([this](const std::string& address, bool /*answers*/, const Bytes& message) {
      return loses(message_kind(address, message));
    });
  }
}

World::~World() {
  for (const auto& machine : machines_) kill(*machine, false);
  kill_coordinator();
  spdlog::set_default_logger(before_);
  std::error_code ignored;
  fs::remove_all(disk_.state, ignored);
}

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
  if (!scenario_.lost.empty()) job.standstill.least = kStandstill;
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

/// From the newest checkpoint that the metrics reach, where the operator stopped the job; false:
/// there is none. (From another one it goes on, too, with an alarm, and metrics that lack lines.)
bool World::restore() {
  v1::ListCheckpointsRequest question;
  question.set_protocol_version(kProtocolVersion);
  const auto list = coordinator_->cluster().list_checkpoints(question);
  POSEIDON_CHECK(list.ok(), "our own protocol");
  std::istringstream metrics(disk_.metrics[run_directory_]);
  const Iteration told = read_metrics_progress(metrics).next_iteration;
  const v1::CheckpointInfo* from = nullptr;
  for (const v1::CheckpointInfo& info : list->committed()) {
    if (static_cast<Iteration>(info.iteration()) <= told) from = &info;
  }
  if (from == nullptr) return false;
  v1::RestoreCheckpointRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_id(from->id());
  const absl::StatusOr<v1::SubmitResponse> response =
      coordinator_->cluster().restore_checkpoint(request);
  if (!response.ok()) {
    note(response.status().ToString());
    if (!absl::StrContains(response.status().message(), "is of the end of training")) {
      truth_.fail(absl::StrCat("restore: ", response.status().ToString()));
    }
    return false;
  }
  restored_workers_ = from->workers();
  return true;
}

void World::look() {
  later(kLook, [this] { look(); });
  if (coordinator_ == nullptr || !submitted_ || end_) return;
  v1::GetStatusRequest request;
  request.set_protocol_version(kProtocolVersion);
  const absl::StatusOr<v1::GetStatusResponse> status = coordinator_->cluster().status(request);
  POSEIDON_CHECK(status.ok(), "our own protocol");
  look_at_checkpoints();
  if (status->state() == "stopped" || status->state() == "failed") {
    if (status->state() == "stopped" && restore()) return;
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

std::string World::check_end() {
  if (*end_ != "done") {
    return may_fail(*end_) ? "" : absl::StrCat("the job failed: ", *end_);
  }
  const std::shared_ptr<const Course> course = truth_.newest();
  if (course == nullptr) return "the job is done, and nobody was assigned to it";
  const absl::StatusOr<JobSpec> job = parse_job(scenario_.job_json);
  POSEIDON_CHECK(job.ok(), "the job that was submitted");
  // Who could tell of an iteration is lost only with a coordinator and a worker.
  const bool may_lack_lines =
      (scenario_.has(FaultKind::kKillCoordinator) ||
       scenario_.has(FaultKind::kFreezeCoordinator)) &&
      (scenario_.has(FaultKind::kKillWorker) || scenario_.has(FaultKind::kFreezeWorker));
  std::string wrong =
      check_metrics(disk_.metrics[run_directory_], *course, *job,
                    may_lack_lines ? trace_->missing_lines() : std::set<Iteration>());
  if (wrong.empty()) {
    wrong = check_model(fs::path(run_directory_) / "model.safetensors", *course, *job);
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

ProtocolOutcome simulate_protocol(std::uint64_t seed, bool verbose) {
  return World(draw_protocol_scenario(seed), seed, verbose).run();
}

ProtocolOutcome simulate_lost_message(std::uint64_t seed, bool verbose) {
  return World(draw_lost_message_scenario(seed), seed, verbose).run();
}

}  // namespace poseidon::sim
