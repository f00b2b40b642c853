#include "server/aggregator.h"

#include "common/check.h"
#include "common/wire.h"

namespace poseidon {

Aggregator::Aggregator(std::int64_t elements, std::uint32_t workers)
    : sum_(elements), contributed_(workers, false), waiting_(workers) {}

void Aggregator::take(const Bytes& payload) {
  // The first one is copied: adding to zeros would read and write the cold sum once more.
  if (next_rank_ == 0) {
    copy_payload(payload, sum_.floats());
  } else {
    add_payload(payload, sum_.floats());
  }
  ++next_rank_;
}

void Aggregator::add(WorkerRank rank, const Bytes& payload) {
  const std::uint32_t r = rank.value();
  POSEIDON_CHECK(r < contributed_.size() && !contributed_[r], "one contribution per rank");
  contributed_[r] = true;
  ++contributed_count_;
  if (r != next_rank_) {
    waiting_[r] = payload;
    pending_bytes_ += static_cast<std::int64_t>(payload.size());
    return;
  }
  take(payload);
  while (next_rank_ < contributed_.size() && contributed_[next_rank_]) {
    const Bytes early = std::move(waiting_[next_rank_]);
    waiting_[next_rank_] = Bytes{};
    pending_bytes_ -= static_cast<std::int64_t>(early.size());
    take(early);
  }
}

void Aggregator::reset() {
  contributed_.assign(contributed_.size(), false);
  waiting_.assign(waiting_.size(), Bytes{});
  contributed_count_ = 0;
  next_rank_ = 0;
  pending_bytes_ = 0;
}

}  // namespace poseidon
