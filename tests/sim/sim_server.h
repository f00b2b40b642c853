#pragma once

// A server process on the in-memory network: the real ServerNode with all its parts, on a disk that
// outlives it.
//
// Called by: protocol_sim.cc, which starts and kills it. Calls: server/server_node.h.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/base/random.h"
#include "common/transport/background.h"
#include "common/transport/memory_transport.h"
#include "server/server_node.h"
#include "server/store/chunk_store.h"
#include "server/store/store_service.h"
#include "tests/sim/sim_control.h"

namespace poseidon::sim {

/// A data directory. What is sealed stays; the rest goes with the process.
struct SimDisk {
  std::string identity;
  std::map<SnapshotId, std::map<PieceId, StoredChunk>> sealed;
  std::set<std::pair<SnapshotId, PieceId>> damaged;
  bool full = false;
  bool lost = false;  ///< for good
};

/// As the store of a process: writes fail while the disk is full, damaged pieces are DATA_LOSS.
class SimStore final : public ChunkStore {
 public:
  explicit SimStore(std::shared_ptr<SimDisk> disk) : disk_(std::move(disk)) {}
  absl::Status put(SnapshotId snapshot, const ChunkView& chunk) override;
  absl::Status seal(SnapshotId snapshot) override;
  absl::StatusOr<StoredChunk> get(SnapshotId snapshot, PieceId piece) override;
  absl::StatusOr<std::vector<SnapshotId>> list() override;
  absl::Status remove(SnapshotId snapshot) override;
  StoreFigures figures() override { return {}; }

 private:
  const std::shared_ptr<SimDisk> disk_;
  std::map<SnapshotId, std::map<PieceId, StoredChunk>> open_;
};

/// A disk's thread: one task after the other, each after some time.
class SimBackground final : public Background {
 public:
  SimBackground(Loop* loop, std::uint64_t seed, Nanoseconds slowest)
      : loop_(loop), random_(seed), slowest_(slowest) {}
  ~SimBackground() override { *alive_ = false; }
  void enqueue(std::function<void()> task) override;

 private:
  Loop* const loop_;
  SplitMix64 random_;
  const Nanoseconds slowest_;
  Nanoseconds free_at_{0};
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// One process. Killed by destroying it, after MemoryNetwork::kill.
class SimServer {
 public:
  SimServer(Transport* transport, const std::string& address, std::uint32_t process_id,
            std::shared_ptr<SimDisk> disk, std::uint64_t seed, std::int64_t pending_limit_bytes,
            std::function<void(const absl::Status&)> ended);

  const ShardService& service() const { return service_; }

 private:
  MethodTransport stores_;
  RefusalCounts refusals_;
  ShardService service_;
  SimBackground background_;
  CheckpointKeeper keeper_;
  StoreService store_service_;
  ServerNode node_;
  SimControl control_;
};

}  // namespace poseidon::sim
