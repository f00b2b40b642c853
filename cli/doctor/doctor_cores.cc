#include "cli/doctor/doctor_cores.h"

#include <algorithm>
#include <vector>

namespace poseidon {
namespace {

/// Cores are short when processes wait for a core for at least this share of the time that they
/// run.
constexpr double kWaitsForCores = 0.5;
/// ... on a machine where they use or want at least this share of the cores (other programs may use
/// the rest).
constexpr double kBusyMachine = 0.5;
/// A process is limited when it waits kLimitedWaits times as long as it runs, and for at least
/// kLimitedCores cores, while the others on its machine have enough.
constexpr double kLimitedWaits = 2.0, kLimitedCores = 0.25;
/// ... or while the others wait too, but kLimitedTimes less per core that they have.
constexpr double kLimitedTimes = 8.0;
/// Upper limit of core_shortage.
constexpr double kMostShortage = 3.0;

}  // namespace

double core_shortage(const DoctorFacts& facts, const DoctorFacts::Node& node) {
  for (const DoctorFacts::Machine& m : facts.machines) {
    if (m.id != node.machine) continue;
    const DoctorFacts::Machine others = m.processes.size() > 1 ? without(m, node) : m;
    if (lacks_cores(others)) return std::min(others.wanted / others.used, kMostShortage);
  }
  return 0.0;
}

DoctorFacts::Machine without(DoctorFacts::Machine machine, const DoctorFacts::Node& node) {
  std::erase(machine.processes, node.name);
  machine.used = std::max(machine.used - node.used, 0.0);
  machine.wanted = std::max(machine.wanted - node.wanted, 0.0);
  return machine;
}

bool waits_for_cores(const DoctorFacts::Node& node) {
  return node.wanted >= kLimitedCores && node.wanted >= kWaitsForCores * node.used;
}

bool is_starved(const DoctorFacts::Node& node) {
  return node.wanted >= kLimitedCores && node.wanted >= kLimitedWaits * node.used;
}

bool is_starved_by_its_machine(const DoctorFacts& facts, const DoctorFacts::Node& node) {
  return is_starved(node) && std::ranges::any_of(facts.machines, [&node](const auto& machine) {
           return machine.id == node.machine && lacks_cores(machine);
         });
}

bool is_limited(const DoctorFacts& facts, const DoctorFacts::Node& node) {
  if (!is_starved(node)) return false;
  for (const DoctorFacts::Machine& machine : facts.machines) {
    if (machine.id != node.machine) continue;
    const DoctorFacts::Machine others = without(machine, node);
    if (others.used > 0.0 && others.wanted < kWaitsForCores * others.used) return true;
  }
  bool is_worker = false;
  double used = 0.0, wanted = 0.0;
  for (const auto& worker : facts.workers) {
    is_worker = is_worker || &worker.node == &node;
    if (&worker.node == &node || worker.node.machine != node.machine) continue;
    used += worker.node.used;
    wanted += worker.node.wanted;
  }
  return is_worker && used > 0.0 && node.wanted * used >= kLimitedTimes * wanted * node.used;
}

bool lacks_cores(const DoctorFacts::Machine& machine) {
  return machine.cores > 0.0 && machine.wanted > 0.0 &&
         machine.wanted >= kWaitsForCores * machine.used &&
         machine.used + machine.wanted >= kBusyMachine * machine.cores;
}

}  // namespace poseidon
