#include "worker/data/feed/sampler.h"

#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"

namespace poseidon {

PassPosition pass_position(std::uint64_t position, std::int64_t size) {
  const auto samples = static_cast<std::uint64_t>(size);
  return {.pass = static_cast<std::int64_t>(position / samples),
          .index = static_cast<std::int64_t>(position % samples)};
}

std::uint64_t first_position(std::int64_t iteration, std::int64_t batch_size, std::uint32_t workers,
                             std::uint32_t rank) {
  const auto batch = static_cast<std::uint64_t>(batch_size);
  return (static_cast<std::uint64_t>(iteration) * workers + rank) * batch;
}

void permutation_of_pass(std::uint64_t seed, std::int64_t pass, std::int64_t size,
                         std::vector<std::uint32_t>& order) {
  order.resize(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0u);
  SplitMix64 random(mix_seed(seed, static_cast<std::uint64_t>(pass)));
  for (std::size_t i = order.size() - 1; i >= 1; --i) {
    std::swap(order[i], order[random.below(i + 1)]);
  }
}

Sampler::Sampler(std::int64_t size, bool shuffle, std::uint64_t seed)
    : size_(size), shuffle_(shuffle), seed_(seed) {
  POSEIDON_CHECK(size >= 1 && size <= std::int64_t{std::numeric_limits<std::uint32_t>::max()},
                 "data set size out of range");
}

std::int64_t Sampler::index_at(std::uint64_t position) {
  const PassPosition place = pass_position(position, size_);
  if (!shuffle_) return place.index;
  if (place.pass != pass_) {
    permutation_of_pass(seed_, place.pass, size_, order_);
    pass_ = place.pass;
  }
  return order_[static_cast<std::size_t>(place.index)];
}

}  // namespace poseidon
