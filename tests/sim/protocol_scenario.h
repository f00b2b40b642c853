#pragma once

// Derives from a seed of the protocol simulation a cluster, a job and faults.
//
// Called by: protocol_main.cc, with seeds; protocol_sim.cc runs the scenario. Calls: nothing.

#include <cstdint>
#include <string>
#include <vector>

#include "common/transport/memory_transport.h"

namespace poseidon::sim {

enum class FaultKind {
  kKillWorker,
  kFreezeWorker,
  kKillServer,  ///< its disk stays
  kLoseServer,  ///< its disk too; another server may come
  kFreezeServer,
  kFillDisk,  ///< a server's writes fail for a while
  kDamage,    ///< some pieces of what a server has sealed cannot be read any more
  kPart,      ///< a node and the coordinator, or two nodes, cannot reach each other for a while
  kKillCoordinator,
  kFreezeCoordinator,
  kNewWorker,
  kSave,  ///< not a fault: an operator requests a checkpoint
  kStop,  ///< not a fault: an operator stops the job, waits that long for a checkpoint, and resumes
          ///< the job from it
  kGoodbye,  ///< a worker says goodbye, ends when it is released, and is started again
  kDrain,    ///< an operator drains a node, and takes that back after a while
  kCount
};
const char* fault_name(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kSave;
  /// "": `at` after the beginning. Otherwise `at` after the coordinator has sent or received this
  /// many messages of this name.
  std::string message;
  int count = 0;
  Nanoseconds at{0};
  std::uint32_t target = 0;  ///< which one, modulo those there are
  std::uint32_t other = 0;   ///< kPart: the other node; 0: the coordinator
  Nanoseconds lasts{0};      ///< until the process is back, thaws, or gets messages again
  bool comes_back = true;    ///< the process to kill
  bool silently = false;     ///< the machine goes with the process
};

/// A message of the data path that never arrives, though its stream stays whole.
struct LostMessage {
  std::string kind;  ///< as message_kind says
  int count = 1;     ///< which one of its kind, in the order in which they are sent
};

struct ProtocolScenario {
  std::uint32_t workers = 1, servers = 1;  ///< there at the beginning
  std::string job_json;
  std::uint32_t wanted_workers = 0, wanted_servers = 0;  ///< as in SubmitRequest
  std::int64_t min_workers = 1;
  std::int64_t iterations = 0;
  std::int64_t checkpoint_every = 0;
  std::int64_t replicas = 1;
  bool has_statistics = false;
  std::uint32_t workers_per_host = 1;  ///< that share an address but for the port
  bool servers_beside_workers = false;
  Nanoseconds replace_timeout{0}, server_timeout{0}, max_compute{0}, slowest_disk{0};
  std::int64_t pending_limit_bytes = 0;
  MemoryFaults network;
  std::vector<Fault> faults;
  std::vector<LostMessage> lost;

  bool has(FaultKind kind) const;
};

ProtocolScenario draw_protocol_scenario(std::uint64_t seed);
/// The same cluster and job on a perfect network without any fault but one lost message, of one
/// kind after the other as seeds count.
ProtocolScenario draw_lost_message_scenario(std::uint64_t seed);
/// "data push", "relay parameters", "factors digest", "store hold"; "" outside the data path.
std::string message_kind(const std::string& address, const Bytes& message);
std::string describe(const ProtocolScenario& scenario);
std::string describe(const Fault& fault);

}  // namespace poseidon::sim
