#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/ids.h"

namespace poseidon {

/// Chunks that wait to be sent on one stream, ordered by need: a ChunkId counts in forward order,
/// so the smallest waiting one is what the next forward pass asks for first.
///
/// A bit per chunk of the plan: bounded by construction, no allocation after creation, and a chunk
/// waits at most once (what is sent is its newest content, so once is enough). One thread only.
class ChunkQueue {
 public:
  explicit ChunkQueue(std::size_t chunks) : words_((chunks + 63) / 64, 0) {}

  void push(ChunkId chunk) {
    std::uint64_t& word = words_[chunk.value() / 64];
    const std::uint64_t bit = std::uint64_t{1} << (chunk.value() % 64);
    size_ += (word & bit) == 0 ? 1 : 0;
    word |= bit;
    first_word_ = std::min<std::size_t>(first_word_, chunk.value() / 64);
  }

  void erase(ChunkId chunk) {
    std::uint64_t& word = words_[chunk.value() / 64];
    const std::uint64_t bit = std::uint64_t{1} << (chunk.value() % 64);
    size_ -= (word & bit) != 0 ? 1 : 0;
    word &= ~bit;
  }

  /// The most urgent chunk, removed; nothing when empty.
  std::optional<ChunkId> pop() {
    for (; first_word_ < words_.size(); ++first_word_) {
      std::uint64_t& word = words_[first_word_];
      if (word == 0) continue;
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(word));
      word &= word - 1;
      --size_;
      return ChunkId(static_cast<std::uint32_t>(first_word_ * 64) + bit);
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

}  // namespace poseidon
