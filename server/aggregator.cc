#include "server/aggregator.h"

#include <utility>

#include "common/check.h"
#include "common/wire.h"

namespace poseidon {

Aggregator::Aggregator(std::int64_t elements, std::uint32_t workers)
    : elements_(elements),
      sum_(workers > 1 ? elements : 0),
      contributed_(workers, false),
      waiting_(workers) {}

void Aggregator::add(WorkerRank rank, const Bytes& payload) {
  const std::uint32_t r = rank.value();
  POSEIDON_CHECK(r < contributed_.size() && !contributed_[r], "one contribution per rank");
  POSEIDON_CHECK(payload.size() == static_cast<std::size_t>(elements_) * sizeof(float),
                 "payload and chunk differ in size");
  contributed_[r] = true;
  ++contributed_count_;
  waiting_[r] = payload;
  pending_bytes_ += static_cast<std::int64_t>(payload.size());
  add_in_order();
}

void Aggregator::add_in_order() {
  while (next_rank_ + 1 < contributed_.size() && contributed_[next_rank_]) {
    const Bytes payload = std::exchange(waiting_[next_rank_], Bytes{});
    pending_bytes_ -= static_cast<std::int64_t>(payload.size());
    // The first one is copied: adding to zeros would read and write the cold sum once more.
    if (next_rank_ == 0) {
      copy_payload(payload, sum_.floats());
    } else {
      add_payload(payload, sum_.floats());
    }
    ++next_rank_;
  }
}

void Aggregator::drain(const Consume& consume) {
  POSEIDON_CHECK(complete(), "every rank has contributed");
  const Bytes last = std::exchange(waiting_.back(), Bytes{});
  PayloadReader reader(last);
  const std::span<const float> sum = std::as_const(sum_).floats();
  std::size_t first = 0;
  for (auto run = reader.next(); run.size > 0; run = reader.next()) {
    consume(first, run.size, {.sum = sum.empty() ? nullptr : sum.data() + first, .last = run.data});
    first += run.size;
  }
  contributed_.assign(contributed_.size(), false);
  contributed_count_ = 0;
  next_rank_ = 0;
  pending_bytes_ = 0;
}

}  // namespace poseidon
