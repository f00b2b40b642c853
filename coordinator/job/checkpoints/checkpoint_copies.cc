#include "coordinator/job/checkpoints/checkpoint_copies.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace poseidon {

std::int64_t copies_here(const CheckpointManifest& manifest, const std::vector<NodeInfo>& members) {
  std::vector<std::int64_t> here;
  for (const std::string& store : manifest.stores) {
    here.push_back(store_address(members, store).empty() ? 0 : 1);
  }
  std::int64_t fewest = static_cast<std::int64_t>(here.size());
  for (const CheckpointPiece& piece : manifest.pieces) {
    const std::int64_t second = piece.second ? here[piece.second->value()] : 0;
    fewest = std::min(fewest, here[piece.holder.value()] + second);
  }
  return fewest;
}

bool CheckpointCopies::look(std::size_t servers, std::optional<std::int64_t> newest) {
  const State before = state_;
  servers_ = servers;
  has_ = std::min(wanted_, static_cast<std::int64_t>(servers));
  state_ = has_ < wanted_ ? State::kServersMissing : State::kWhole;
  if (newest && *newest < has_) {
    has_ = *newest;
    if (state_ == State::kWhole) state_ = State::kOldOnes;
  }
  if (state_ != State::kOldOnes) wished_.reset();
  return state_ != before;
}

bool CheckpointCopies::take_wish(Nanoseconds now) {
  if (state_ != State::kOldOnes || (wished_ && now - *wished_ < pause_)) return false;
  wished_ = now;
  return true;
}

std::string CheckpointCopies::text() const {
  if (state_ == State::kWhole) return "";
  if (state_ == State::kOldOnes) {
    return absl::StrFormat(
        "the newest checkpoint has %d of %d copies (checkpoint.replicas); the next one has %d",
        has_, wanted_, wanted_);
  }
  const std::int64_t lacks = wanted_ - static_cast<std::int64_t>(servers_);
  return absl::StrFormat(
      "checkpoints have %d of %d copies (checkpoint.replicas): %d server%s missing; start %d more "
      "poseidon-server%s, the job takes %s in by itself",
      has_, wanted_, lacks, lacks == 1 ? " is" : "s are", lacks, lacks == 1 ? "" : "s",
      lacks == 1 ? "it" : "them");
}

}  // namespace poseidon
