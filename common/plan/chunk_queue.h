#pragma once

// The queue of one stream: which ids wait to be sent, and in which order. Pure; one thread, the
// loop.
//
// Called by: sync/routes (gradients, factors) and sync/chunks/chunk_service.h (parameters) push
// ids. The stream's owner pops the most urgent id when the previous message is written, and only
// then makes the message. Calls: nothing.
//
// The queue holds ids, not messages: an id waits at most once, and its newest content is sent. So
// the queue's memory is fixed at creation.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/ids.h"

namespace poseidon {

/// The order in which waiting ids are sent on a stream.
enum class SendOrder : std::uint8_t {
  kNeed,   ///< the chunk that the next forward pass needs first goes first
  kReady,  ///< in order of readiness: without priorities, to measure their effect
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

/// Ids count in forward order, so the smallest waiting id is the chunk that the next forward pass
/// needs first. A bit per id, and for SendOrder::kReady a list through all ids: no allocation after
/// creation.
template <typename Id>
class SendQueue {
 public:
  /// An empty queue for ids below `ids`.
  explicit SendQueue(std::size_t ids, SendOrder order = SendOrder::kNeed)
      : words_((ids + 63) / 64, 0) {
    if (order == SendOrder::kNeed) return;
    const auto end = static_cast<std::uint32_t>(ids);
    links_.assign(ids + 1, {.before = end, .after = end});
  }

  /// An id that waits already keeps its place.
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

  /// No effect for an id that does not wait.
  void erase(Id id) {
    if (!waits(id)) return;
    words_[word_of(id)] &= ~bit_of(id);
    --size_;
    if (links_.empty()) return;
    const Link link = links_[id.value()];
    links_[link.before].after = link.after;
    links_[link.after].before = link.before;
  }

  /// Removes and returns the first id; nullopt when empty.
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

  /// The queue must not be empty.
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
