#include "sync/chunks/aggregator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.h"
#include "common/wire/wire.h"

namespace poseidon {
namespace {

/// 16-bit contributions are widened in such blocks: 8 KiB, which stays in the innermost cache.
constexpr std::size_t kBlockElements = 2048;

}  // namespace

Aggregator::Aggregator(std::int64_t elements, std::size_t contributors, ElementType wire_type,
                       bool settles, Team* team)
    : elements_(elements),
      wire_type_(wire_type),
      own_(contributors > 1 || settles ? elements : 0),
      sum_(own_.floats()),
      contributed_(contributors, false),
      waiting_(contributors),
      team_(team) {}

Aggregator::Aggregator(std::span<float> sum, std::size_t contributors, ElementType wire_type,
                       Team* team)
    : elements_(static_cast<std::int64_t>(sum.size())),
      wire_type_(wire_type),
      sum_(sum),
      contributed_(contributors, false),
      waiting_(contributors),
      team_(team) {}

void Aggregator::add(std::size_t contributor, const Bytes& payload) {
  POSEIDON_CHECK(contributor < contributed_.size() && !contributed_[contributor],
                 "one contribution each");
  POSEIDON_CHECK(payload.size() == static_cast<std::size_t>(elements_) * element_bytes(wire_type_),
                 "payload and chunk differ in size");
  contributed_[contributor] = true;
  ++contributed_count_;
  waiting_[contributor] = payload;
  pending_bytes_ += static_cast<std::int64_t>(payload.size());
  add_in_order();
}

void Aggregator::add_in_order() {
  while (next_ + 1 < contributed_.size() && contributed_[next_]) {
    const Bytes payload = std::exchange(waiting_[next_], Bytes{});
    pending_bytes_ -= static_cast<std::int64_t>(payload.size());
    // The first one is copied: adding to zeros would read and write the cold sum once more.
    if (next_ == 0) {
      copy_payload(payload, sum_, wire_type_, *team_);
    } else {
      add_payload(payload, sum_, wire_type_, *team_);
    }
    ++next_;
  }
}

std::span<const float> Aggregator::settle() {
  POSEIDON_CHECK(complete() && !sum_.empty(), "everybody has contributed");
  const Bytes last = std::exchange(waiting_.back(), Bytes{});
  pending_bytes_ = 0;
  if (contributed_.size() == 1) {
    copy_payload(last, sum_, wire_type_, *team_);
  } else {
    add_payload(last, sum_, wire_type_, *team_);
  }
  return sum_;
}

void Aggregator::next_round() {
  contributed_.assign(contributed_.size(), false);
  contributed_count_ = 0;
  next_ = 0;
  pending_bytes_ = 0;
}

void Aggregator::drain(Consume consume) {
  POSEIDON_CHECK(complete(), "everybody has contributed");
  const Bytes last = std::exchange(waiting_.back(), Bytes{});
  team_->for_ranges(static_cast<std::size_t>(elements_), [&](std::size_t first, std::size_t size) {
    drain_range(last, first, size, consume);
  });
  next_round();
}

/// On any thread of the team.
void Aggregator::drain_range(const Bytes& last, std::size_t first, std::size_t size,
                             Consume consume) {
  PayloadReader reader(last, wire_type_, first, size);
  const std::span<const float> sum = sum_;
  const auto give = [&](const std::byte* floats, std::size_t count) {
    consume(first, count, {.sum = sum.empty() ? nullptr : sum.data() + first, .last = floats});
    first += count;
  };
  for (auto run = reader.next(); run.size > 0; run = reader.next()) {
    if (wire_type_ == ElementType::kFloat32) {
      give(run.data, run.size);
      continue;
    }
    std::array<float, kBlockElements> block;
    while (run.size > 0) {
      const std::size_t count = std::min(run.size, kBlockElements);
      widen_payload(wire_type_, {run.data, count}, block.data());
      give(reinterpret_cast<const std::byte*>(block.data()), count);
      run.data += count * element_bytes(wire_type_);
      run.size -= count;
    }
  }
}

}  // namespace poseidon
