#pragma once

// Derives from the facts what limits a job. Pure: all rules and their limits are here, in
// doctor_cores.h and in doctor_slow_node.h; docs/tracing.md describes them.

#include <string>
#include <vector>

#include "cli/doctor/doctor_facts.h"

namespace poseidon {

struct Finding {
  enum class Kind {
    kLink,         ///< link of one node
    kWorker,       ///< computes slower than the others
    kInput,        ///< samples do not come fast enough
    kDisk,         ///< of a server
    kServer,       ///< one that has more to do than the others
    kNetwork,      ///< the whole network
    kCpu,          ///< fewer cores than the job's processes want
    kLayer,        ///< one that most waiting is for
    kSlower,       ///< workers that computed faster before
    kCompute,      ///< nothing else
    kUnknown,      ///< the facts do not show the limit
    kNotTraining,  ///< there is nothing to trace (cli/doctor/doctor_not_training.h)
    // Faults without a cost that can be computed (cli/doctor/doctor_health.h).
    kStore,        ///< RocksDB reports errors
    kSpace,        ///< a server's disk is nearly full
    kCheckpoint,   ///< checkpoints that fail
    kStreams,      ///< that break
    kPaused,       ///< streams that a server leaves unread
    kPath,         ///< sockets where shared memory would do
    kSamples,      ///< that cannot be read
    kRefused,      ///< messages or connections
    kCertificate,  ///< expires soon
  };
  Kind kind = Kind::kUnknown;
  std::string guilty;   ///< name of the node, layer or machine; "": all of them
  double cost_s = 0.0;  ///< approximate cost per iteration
  double share = 0.0;   ///< the same as a share of the iteration, 0..1
  std::string what;     ///< one sentence with its figures
  std::string remedy;   ///< what to do
};

const char* finding_name(Finding::Kind kind);  ///< "link", ...

/// Never empty; the most expensive first. Findings that cost nothing now but will later (a slow or
/// full disk, all of cli/doctor/doctor_health.h) come last. When no finding has a cost, one that
/// blames nothing (kCompute or kUnknown) is added in front.
std::vector<Finding> diagnose(const DoctorFacts& facts);

}  // namespace poseidon
