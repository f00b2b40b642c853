// The faults of a simulated cluster, and their permitted cost.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/wire/wire.h"
#include "tests/sim/protocol_world.h"

namespace poseidon::sim {

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

bool World::loses(const std::string& kind) {
  if (kind.empty() || end_) return false;
  const int count = ++data_messages_[kind];
  for (const LostMessage& lost : scenario_.lost) {
    if (lost.kind != kind || lost.count != count) continue;
    note(absl::StrCat("lose message ", count, " of kind ", kind));
    ++happened_[absl::StrCat("lose ", kind)];
    last_trouble_ = network_.now();
    return true;
  }
  return false;
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

/// As a process that gets SIGTERM; a service that is started again.
void World::say_goodbye(Machine& machine) {
  if (machine.worker == nullptr) return;
  machine.worker->say_goodbye();
  later(kLeavePatience, [this, &machine, which = machine.processes] {
    if (machine.processes != which || machine.process.empty()) return;
    note(absl::StrCat(machine.process, " was not released"));
    kill_for_a_while(machine, {.lasts = kRestartPause});
  });
}

void World::drain_for_a_while(const Machine& machine, Nanoseconds time) {
  const auto drain = [this, address = machine.address](bool undo) {
    if (coordinator_ == nullptr) return;
    v1::DrainNodeRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_node(address);
    request.set_undo(undo);
    const auto answer = coordinator_->cluster().drain_node(request);
    note(absl::StrCat(undo ? "takes back the drain of " : "drains ", address, ": ",
                      answer.status().ToString()));
  };
  drain(/*undo=*/false);
  later(time, [drain] { drain(/*undo=*/true); });
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
    case FaultKind::kStop:
      if (coordinator_ != nullptr && submitted_) {
        v1::EndJobRequest request;
        request.set_protocol_version(kProtocolVersion);
        request.set_checkpoint_within_s(
            static_cast<std::uint32_t>(fault.lasts / std::chrono::seconds(1)));
        (void)coordinator_->cluster().end_job(request);
      }
      return;
    case FaultKind::kGoodbye:
      if (worker != nullptr) say_goodbye(*worker);
      return;
    case FaultKind::kDrain:
      drain_for_a_while(*machines_[fault.target % machines_.size()], fault.lasts);
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
  // Those who leave give what they hold. A test that is cut off is made again, and the iteration
  // after it.
  if ((kind == FaultKind::kGoodbye || kind == FaultKind::kDrain) && done > 1) {
    truth_.fail(absl::StrCat("a node that left as planned cost ", done, " iterations"));
  }
  const bool is_worker = kind == FaultKind::kKillWorker || kind == FaultKind::kFreezeWorker;
  const bool is_server = kind == FaultKind::kKillServer || kind == FaultKind::kFreezeServer;
  const std::shared_ptr<const Course> course = truth_.newest();
  if (course == nullptr) return;  // no node knows of an epoch yet
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

/// Where a failed job is the right end.
bool World::may_fail(const std::string& why) {
  std::int64_t workers = 0, servers = 0;
  for (const auto& machine : machines_) {
    if (!machine->gone) ++(machine->is_server ? servers : workers);
  }
  if (absl::StrContains(why, kOperatorsStop))
    return true;  // and there is no checkpoint to continue from
  const std::int64_t fewest = std::max<std::int64_t>(scenario_.min_workers, 1);
  if (workers < fewest || servers == 0) return true;
  if (restored_workers_ > 0 && absl::StrContains(why, "waits for nodes")) {
    return workers < restored_workers_;  // exactly this number
  }
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
                   absl::StrContains(why, "an operator may choose another checkpoint") ||
                   absl::StrContains(why, "a checkpoint that can be read") ||
                   absl::StrContains(why, "copies on different servers"));
}

}  // namespace poseidon::sim
