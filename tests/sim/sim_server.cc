#include "tests/sim/sim_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon::sim {
namespace {

constexpr Nanoseconds kSlowestDiskTask{Milliseconds(40)};

}  // namespace

absl::Status SimStore::put(SnapshotId snapshot, const ChunkView& chunk) {
  if (disk_->full) return absl::ResourceExhaustedError("no space left on the device");
  if (disk_->sealed.contains(snapshot)) {
    return absl::FailedPreconditionError(absl::StrCat(snapshot_name(snapshot), " is sealed"));
  }
  const auto copy = [](std::span<const float> floats) {
    return std::vector<float>(floats.begin(), floats.end());
  };
  open_[snapshot][chunk.piece] = {chunk.piece, chunk.version, copy(chunk.parameters),
                                  copy(chunk.state0), copy(chunk.state1)};
  return absl::OkStatus();
}

absl::Status SimStore::seal(SnapshotId snapshot) {
  if (disk_->full) return absl::ResourceExhaustedError("no space left on the device");
  const auto open = open_.extract(snapshot);
  disk_->sealed[snapshot] = open.empty() ? std::map<PieceId, StoredChunk>() : open.mapped();
  return absl::OkStatus();
}

absl::StatusOr<StoredChunk> SimStore::get(SnapshotId snapshot, PieceId piece) {
  const auto chunks = disk_->sealed.find(snapshot);
  if (chunks == disk_->sealed.end() || !chunks->second.contains(piece)) {
    return absl::NotFoundError(
        absl::StrCat("no piece ", piece.value(), " in a sealed ", snapshot_name(snapshot)));
  }
  if (disk_->damaged.contains({snapshot, piece})) {
    return absl::DataLossError(
        absl::StrCat("piece ", piece.value(), " of ", snapshot_name(snapshot), " is damaged"));
  }
  return chunks->second.at(piece);
}

absl::StatusOr<std::vector<SnapshotId>> SimStore::list() {
  std::vector<SnapshotId> sealed;
  for (const auto& [snapshot, chunks] : disk_->sealed) sealed.push_back(snapshot);
  return sealed;
}

absl::Status SimStore::remove(SnapshotId snapshot) {
  open_.erase(snapshot);
  disk_->sealed.erase(snapshot);
  return absl::OkStatus();
}

void SimBackground::enqueue(std::function<void()> task) {
  const auto range = static_cast<std::uint64_t>(slowest_.count());
  const Nanoseconds takes(static_cast<std::int64_t>(random_.below(range + 1)));
  free_at_ = std::max(free_at_, loop_->now()) + takes;
  loop_->post_after(free_at_ - loop_->now(), [alive = alive_, task = std::move(task)] {
    if (*alive) task();
  });
}

SimServer::SimServer(Transport* transport, const std::string& address, std::uint32_t process_id,
                     std::shared_ptr<SimDisk> disk, std::uint64_t seed,
                     std::int64_t pending_limit_bytes,
                     std::function<void(const absl::Status&)> ended)
    : stores_(transport, kStoreSuffix),
      service_(transport, &refusals_, {}, pending_limit_bytes),
      background_(transport, seed, kSlowestDiskTask),
      keeper_(std::make_unique<SimStore>(disk), &background_),
      store_service_(&stores_, &keeper_, &refusals_, {}),
      node_({.service = &service_,
             .keeper = &keeper_,
             .stores = &stores_,
             .probe = std::make_shared<NodeProbe>(),
             .refusals = &refusals_,
             .metrics = nullptr,
             .link = nullptr}),
      control_(
          transport,
          [&] {
            v1::Join join;
            join.set_role(v1::NODE_ROLE_SERVER);
            join.set_address(address);
            join.set_process_id(process_id);
            join.set_store_identity(disk->identity);
            return join;
          }(),
          &node_, std::move(ended)) {
  POSEIDON_CHECK(transport->listen(address, &service_).ok(), "a free address");
  POSEIDON_CHECK(stores_.listen(address, &store_service_).ok(), "a free address");
  node_.set_client(&control_);
  control_.start();
}

}  // namespace poseidon::sim
