#pragma once

// The one worker that computes, or the one link that carries, slower than the others. Pure.
//
// Before: doctor_facts.h, doctor_cores.h. After: doctor_diagnose.h says it.

#include <optional>
#include <vector>

#include "cli/doctor/doctor_facts.h"

namespace poseidon {

/// Whether what costs so much of each iteration is worth a word.
bool is_worth(const DoctorFacts& facts, double cost_s);

/// Workers, then servers.
std::vector<const DoctorFacts::Node*> nodes_of(const DoctorFacts& facts);

struct SlowWorker {
  const DoctorFacts::Worker* worker = nullptr;
  double takes = 0.0, usual = 0.0, cost_s = 0.0;  ///< it, the others; seconds of an iteration
  bool in_bursts = false;                         ///< and otherwise as quick as the others
};

/// So many times as long as the others it may compute where it is: more where cores are short.
/// Null: nothing is known of where it is.
double slow_worker_limit(const DoctorFacts& facts, const DoctorFacts::Node* node);
/// Computes longer than the others, who then wait for it.
std::optional<SlowWorker> slow_worker(const DoctorFacts& facts);

struct SlowLink {
  const DoctorFacts::Node* node = nullptr;
  bool sends = false;
  double rate = 0.0, usual = 0.0;  ///< it, the others; bytes per second
  double busy_s = 0.0;             ///< of an iteration
  double limit = 0.0;              ///< times that it may be slower
};

/// One node whose best stream, in a direction, is slow where the others' best are not. `stall_s`:
/// how long workers wait in an iteration.
std::optional<SlowLink> slow_link(const DoctorFacts& facts, double stall_s);

/// What is on its way to or from a process waits while that stands still. Whether its link is as
/// good as any in the rest of the time.
bool explains(const DoctorFacts& facts, const SlowWorker& worker, const SlowLink& link);

}  // namespace poseidon
