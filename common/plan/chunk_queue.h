#pragma once

// What waits to be sent on one stream, and in which order it goes. Pure; one thread, the loop.
//
// Before: sync/routes (gradients, factors) or sync/chunks/chunk_service.h (parameters) has
// something for an id. After: whoever has the stream takes the most urgent id when the message
// before it is written, and makes the message then.
//
// The queue holds ids, not messages: an id waits at most once, and what is sent of it is its newest
// content. So its memory is what it was made with, however much comes.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/ids.h"

namespace poseidon {

/// What goes first of what waits to be sent on one stream.
enum class SendOrder : std::uint8_t {
  kNeed,   ///< what the next forward pass asks for first
  kReady,  ///< what was ready first: how things are without priorities, to measure what those give
};
inline constexpr std::array kSendOrders = {SendOrder::kNeed, SendOrder::kReady};

/// "need", "ready": sync.send_order in the job file, send_order in plan.json.
constexpr std::string_view send_order_name(SendOrder order) {
  return order == SendOrder::kNeed ? "need" : "ready";
}

/// Nothing for an unknown name.
constexpr std::optional<SendOrder> send_order_from_name(std::string_view name) {
  for (const SendOrder order : kSendOrders) {
    if (name == send_order_name(order)) return order;
  }
  return std::nullopt;
}

/// Ids count in forward order, so the smallest waiting one is what the next forward pass needs
/// first. A bit per id, and for SendOrder::kReady a list through all ids: no allocation after
/// creation.
template <typename Id>
class SendQueue {
 public:
  /// For ids below `ids`, none of which waits.
  explicit SendQueue(std::size_t ids, SendOrder order = SendOrder::kNeed)
      : words_((ids + 63) / 64, 0) {
    if (order == SendOrder::kNeed) return;
    const auto end = static_cast<std::uint32_t>(ids);
    links_.assign(ids + 1, {.before = end, .after = end});
  }

  /// One that waits already keeps its place.
  void push(Id id) {
    if (waits(id)) return;
    words_[word_of(id)] |= bit_of(id);
    first_word_ = std::min(first_word_, word_of(id));
    ++size_;
    if (links_.empty()) return;
    const auto end = static_cast<std::uint32_t>(links_.size() - 1);
    links_[id.value()] = {.before = links_[end].before, .after = end};
    links_[links_[end].before].after = id.value();
    links_[end].before = id.value();
  }

  /// Harmless for one that does not wait.
  void erase(Id id) {
    if (!waits(id)) return;
    words_[word_of(id)] &= ~bit_of(id);
    --size_;
    if (links_.empty()) return;
    const Link link = links_[id.value()];
    links_[link.before].after = link.after;
    links_[link.after].before = link.before;
  }

  /// The first one, removed; nothing when empty.
  std::optional<Id> pop() {
    if (empty()) return std::nullopt;
    const Id id = links_.empty() ? smallest() : Id(links_.back().after);
    erase(id);
    return id;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  /// Neighbours in a ring of those that wait; the link behind all ids is its beginning and end.
  struct Link {
    std::uint32_t before = 0;
    std::uint32_t after = 0;
  };

  static std::size_t word_of(Id id) { return id.value() / 64; }
  static std::uint64_t bit_of(Id id) { return std::uint64_t{1} << (id.value() % 64); }
  bool waits(Id id) const { return (words_[word_of(id)] & bit_of(id)) != 0; }

  /// Not while it is empty.
  Id smallest() {
    while (words_[first_word_] == 0) ++first_word_;
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(words_[first_word_]));
    return Id(static_cast<std::uint32_t>(first_word_ * 64) + bit);
  }

  std::vector<std::uint64_t> words_;
  std::size_t first_word_ = 0;  ///< no bit is set in any word before this one
  std::size_t size_ = 0;
  std::vector<Link> links_;  ///< by id, and one more; empty for SendOrder::kNeed
};

/// Chunks of the plan.
using ChunkQueue = SendQueue<ChunkId>;

}  // namespace poseidon
