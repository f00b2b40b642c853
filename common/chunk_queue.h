#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/ids.h"

namespace poseidon {

/// What waits to be sent on one stream, ordered by need: the ids count in forward order, so the
/// smallest waiting one is what the next forward pass asks for first.
///
/// A bit per id of the plan: bounded by construction, no allocation after creation, and an id waits
/// at most once (what is sent is its newest content, so once is enough). One thread only.
template <typename Id>
class UrgencyQueue {
 public:
  explicit UrgencyQueue(std::size_t ids) : words_((ids + 63) / 64, 0) {}

  void push(Id id) {
    std::uint64_t& word = words_[id.value() / 64];
    const std::uint64_t bit = std::uint64_t{1} << (id.value() % 64);
    size_ += (word & bit) == 0 ? 1 : 0;
    word |= bit;
    first_word_ = std::min<std::size_t>(first_word_, id.value() / 64);
  }

  void erase(Id id) {
    std::uint64_t& word = words_[id.value() / 64];
    const std::uint64_t bit = std::uint64_t{1} << (id.value() % 64);
    size_ -= (word & bit) != 0 ? 1 : 0;
    word &= ~bit;
  }

  /// The most urgent one, removed; nothing when empty.
  std::optional<Id> pop() {
    for (; first_word_ < words_.size(); ++first_word_) {
      std::uint64_t& word = words_[first_word_];
      if (word == 0) continue;
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(word));
      word &= word - 1;
      --size_;
      return Id(static_cast<std::uint32_t>(first_word_ * 64) + bit);
    }
    return std::nullopt;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t first_word_ = 0;  ///< no bit is set in any word before this one
  std::size_t size_ = 0;
};

/// Chunks of the plan.
using ChunkQueue = UrgencyQueue<ChunkId>;

}  // namespace poseidon
