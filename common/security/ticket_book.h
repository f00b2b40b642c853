#pragma once

// Tickets that were given out and not yet shown: who shows one may open a connection without a TLS
// handshake. A ticket is good once and for a short time.
//
// Before: common/grpc/sealed_transport.h gives them out. After: common/security/connection_door.h
// asks for what a caller has shown.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "common/base/clock.h"

namespace poseidon {

/// Random bytes. The first half finds the ticket, the second is compared in constant time.
using Ticket = std::array<std::byte, 32>;

/// Whether the ticket is good; then it owns the socket from now on. Any thread.
using TicketEntrance = std::function<bool(const Ticket& ticket, int socket)>;

/// From giving a ticket to its being shown: a TCP connection to a machine that was just heard.
inline constexpr Nanoseconds kTicketLife = std::chrono::seconds(30);
/// Of a book; who holds more gives up the oldest.
inline constexpr std::size_t kMaxTickets = 4096;

/// What belongs to each ticket. Not for concurrent use.
template <typename Value>
class TicketMap {
 public:
  void add(const Ticket& ticket, Value value, Nanoseconds now) {
    while (!by_age_.empty() &&
           (by_age_.begin()->first.first < now || by_age_.size() >= kMaxTickets)) {
      entries_.erase(by_age_.begin()->second);
      by_age_.erase(by_age_.begin());
    }
    const Age age{now + kTicketLife, sequence_++};
    entries_.insert_or_assign(half(ticket, 0), Entry{half(ticket, 1), age, std::move(value)});
    by_age_.emplace(age, half(ticket, 0));
  }

  /// Nothing when it is none of ours, too old, or was taken before.
  std::optional<Value> take(const Ticket& ticket, Nanoseconds now) {
    const auto found = entries_.find(half(ticket, 0));
    if (found == entries_.end()) return std::nullopt;
    const Half shown = half(ticket, 1);
    std::byte difference{0};
    for (std::size_t i = 0; i < shown.size(); ++i) difference |= shown[i] ^ found->second.proof[i];
    if (difference != std::byte{0}) return std::nullopt;
    Entry entry = std::move(found->second);
    entries_.erase(found);
    by_age_.erase(entry.age);
    if (entry.age.first < now) return std::nullopt;
    return std::move(entry.value);
  }

  std::size_t size() const { return entries_.size(); }

 private:
  using Half = std::array<std::byte, 16>;
  using Age = std::pair<Nanoseconds, std::uint64_t>;  ///< when it ends, and a number of its own
  struct Entry {
    Half proof;
    Age age;
    Value value;
  };
  static Half half(const Ticket& ticket, std::size_t which) {
    Half part;
    std::copy_n(ticket.begin() + static_cast<std::ptrdiff_t>(which * part.size()), part.size(),
                part.begin());
    return part;
  }

  std::map<Half, Entry> entries_;
  std::map<Age, Half> by_age_;
  std::uint64_t sequence_ = 0;
};

/// The tickets that a port's door lets in. Any thread.
template <typename Value>
class TicketBook {
 public:
  void add(const Ticket& ticket, Value value) {
    const std::lock_guard lock(mutex_);
    tickets_.add(ticket, std::move(value), clock_.now());
  }
  std::optional<Value> take(const Ticket& ticket) {
    const std::lock_guard lock(mutex_);
    return tickets_.take(ticket, clock_.now());
  }

 private:
  const SystemClock clock_{};
  std::mutex mutex_;
  TicketMap<Value> tickets_;
};

}  // namespace poseidon
