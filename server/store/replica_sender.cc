#include "server/store/replica_sender.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

/// Failed snapshots that are remembered, to drop their late pieces.
constexpr std::size_t kMaxFailuresRemembered = 64;

std::uint32_t state_slots(const FrozenChunk& chunk) {
  return (chunk.state0.size_bytes() > 0 ? 1u : 0u) + (chunk.state1.size_bytes() > 0 ? 1u : 0u);
}

/// All slots end to end.
std::shared_ptr<const std::vector<float>> joined(const FrozenChunk& chunk) {
  auto values = std::make_shared<std::vector<float>>();
  values->reserve(chunk.parameters.floats().size() * (state_slots(chunk) + 1));
  for (const FloatBuffer* const slot : {&chunk.parameters, &chunk.state0, &chunk.state1}) {
    values->insert(values->end(), slot->floats().begin(), slot->floats().end());
  }
  return values;
}

}  // namespace

ReplicaSender::ReplicaSender(Transport* stores, StoreTransferOptions options)
    : stores_(stores), options_(options) {}

void ReplicaSender::begin(std::string address, Failed failed) {
  transfer_.reset();
  waiting_.clear();
  failed_snapshots_.clear();
  expected_ = {};
  address_ = std::move(address);
  failed_ = std::move(failed);
}

void ReplicaSender::put(SnapshotId snapshot, FrozenChunk chunk) {
  if (address_.empty() || failed_snapshots_.contains(snapshot)) return;
  std::set<SnapshotId> under_way;
  if (transfer_ != nullptr) under_way.insert(sending_);
  for (const Waiting& waiting : waiting_) under_way.insert(waiting.snapshot);
  if (!under_way.contains(snapshot) && under_way.size() >= kMaxReplicasUnderWay &&
      snapshot != expected_) {
    fail(snapshot,
         absl::OutOfRangeError(absl::StrCat(
             "the store at ", address_, " has not taken the copies of ", kMaxReplicasUnderWay,
             " earlier checkpoints yet; set checkpoint.every_iterations higher")));
    return;
  }
  waiting_.push_back({snapshot, std::move(chunk)});
  if (transfer_ == nullptr) send_next();
}

/// All that waits of the oldest snapshot, in one transfer.
void ReplicaSender::send_next() {
  transfer_.reset();
  if (waiting_.empty()) return;
  sending_ = waiting_.front().snapshot;
  std::vector<StoreRequest> requests;
  std::erase_if(waiting_, [&](Waiting& waiting) {
    if (waiting.snapshot != sending_) return false;
    StoreRequest request;
    request.address = address_;
    request.header.operation = StoreOperation::kWrite;
    request.header.snapshot = waiting.snapshot;
    request.header.piece = PieceId(waiting.chunk.chunk.value());
    request.header.slot = state_slots(waiting.chunk);
    request.make_payload = [chunk = std::move(waiting.chunk)] { return joined(chunk); };
    requests.push_back(std::move(request));
    return true;
  });
  transfer_ = std::make_unique<StoreTransfer>(stores_, options_);
  transfer_->start(std::move(requests), [this](const absl::Status& status) {
    if (!status.ok()) {
      const SnapshotId snapshot = sending_;
      std::erase_if(waiting_, [&](const Waiting& one) { return one.snapshot == snapshot; });
      fail(snapshot, status);
    }
    send_next();
  });
}

void ReplicaSender::fail(SnapshotId snapshot, const absl::Status& status) {
  failed_snapshots_.insert(snapshot);
  if (failed_snapshots_.size() > kMaxFailuresRemembered) {
    failed_snapshots_.erase(failed_snapshots_.begin());
  }
  if (failed_)
    failed_(snapshot,
            absl::Status(status.code(), absl::StrCat("the second copy: ", status.message())));
}

}  // namespace poseidon
