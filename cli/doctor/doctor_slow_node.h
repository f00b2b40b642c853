#pragma once

// Finds the one worker that computes more slowly than the others, or the one link that is slower.
// Pure.
//
// Called by: doctor_diagnose.h. Calls: doctor_facts.h, doctor_cores.h.

#include <optional>
#include <vector>

#include "cli/doctor/doctor_facts.h"

namespace poseidon {

/// Whether a finding that costs `cost_s` seconds per iteration is worth reporting.
bool is_worth(const DoctorFacts& facts, double cost_s);

/// Workers, then servers.
std::vector<const DoctorFacts::Node*> nodes_of(const DoctorFacts& facts);

struct SlowWorker {
  const DoctorFacts::Worker* worker = nullptr;
  double takes = 0.0, usual = 0.0,
         cost_s = 0.0;     ///< this worker, the others; seconds per iteration
  bool in_bursts = false;  ///< slow for short times only
};

/// The factor by which a worker may be slower than the others: larger on a machine that is short of
/// cores. `node` is null when the worker's machine is unknown.
double slow_worker_limit(const DoctorFacts& facts, const DoctorFacts::Node* node);
/// The worker that computes longer than the others, which then wait for it.
std::optional<SlowWorker> slow_worker(const DoctorFacts& facts);

struct SlowLink {
  const DoctorFacts::Node* node = nullptr;
  bool sends = false;
  double rate = 0.0, usual = 0.0;  ///< this link, the others; bytes per second
  double busy_s = 0.0;             ///< per iteration
  double limit = 0.0;              ///< factor by which a link may be slower
};

/// The one node whose fastest stream in one direction is slow while those of the others are not.
/// `stall_s`: how long workers wait per iteration.
std::optional<SlowLink> slow_link(const DoctorFacts& facts, double stall_s);

/// The worker does not run for most of the time: its streams say nothing of its link.
bool is_mostly_stopped(const SlowWorker& worker);

/// Whether the slow worker explains the slow link: while a process stands still, messages to and
/// from it wait. True when the link is normal the rest of the time, or is_mostly_stopped.
bool explains(const DoctorFacts& facts, const SlowWorker& worker, const SlowLink& link);

}  // namespace poseidon
