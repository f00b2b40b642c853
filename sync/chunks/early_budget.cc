#include "sync/chunks/early_budget.h"

#include <algorithm>

namespace poseidon {

EarlyBudget::EarlyBudget(std::size_t contributors, std::size_t chunks, std::int64_t limit_bytes)
    : limit_bytes_(limit_bytes),
      chunks_(chunks),
      own_share_(std::max<std::int64_t>(
          1, limit_bytes / 2 / std::max<std::int64_t>(1, static_cast<std::int64_t>(contributors)))),
      contributed_(contributors, 0),
      pending_of_(contributors, 0) {}

void EarlyBudget::count(const Aggregator& sum, int sign) {
  pending_bytes_ += sign * sum.pending_bytes();
  for (std::size_t i = 0; i < pending_of_.size(); ++i) {
    std::int64_t& held = pending_of_[i];
    common_bytes_ -= std::max<std::int64_t>(0, held - own_share_);
    held += sign * sum.pending_bytes(i);
    common_bytes_ += std::max<std::int64_t>(0, held - own_share_);
  }
}

void EarlyBudget::chunk_done() {
  if (++done_chunks_ < chunks_) return;
  done_chunks_ = 0;
  std::fill(contributed_.begin(), contributed_.end(), 0);
}

bool EarlyBudget::may_read(std::size_t contributor) const {
  const auto contributors = static_cast<std::int64_t>(pending_of_.size());
  if (pending_of_[contributor] < own_share_) return true;
  if (common_bytes_ < limit_bytes_ - contributors * own_share_) return true;
  const auto behind = std::find_if(contributed_.begin(), contributed_.end(),
                                   [this](std::size_t n) { return n < chunks_; });
  return behind != contributed_.end() &&
         contributor == static_cast<std::size_t>(behind - contributed_.begin());
}

}  // namespace poseidon
