#pragma once

// Memory of tensors and payloads, counted by whoever refers to it. By that a message is sent
// without a copy: it holds the memory for as long as it is read, and whoever wants to overwrite it
// looks first whether anybody still does.
//
// Before: shards, routes and relays hold their tensors in it. After: an OutgoingMessage holds its
// owner until it is sent, and where the other end reads it in place
// (common/transport/paced_transport.h), until that end has let go.
//
// Sizes of FloatBuffer count floats, of PayloadBuffer bytes. New memory is zeroed. Any thread may
// let go of it; one at a time changes a buffer. Errors: without memory the process ends
// (POSEIDON_CHECK).

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace poseidon {

/// Cache-line alignment of every tensor range: what vector loads and the device libraries like.
inline constexpr std::size_t kBufferAlignmentBytes = 64;

/// True when nobody else holds the memory, so that it may be overwritten. use_count() alone
/// orders nothing; counting ourselves once more is an acquire of the same counter, so the last
/// reader's release of its reference, and its reads, are before our writes.
template <typename T>
bool held_by_nobody_else(const std::shared_ptr<T>& memory) {
  if (memory.use_count() != 1) return false;
  const std::shared_ptr<T> acquire = memory;  // NOLINT: the copying is the point
  return acquire != nullptr;
}

/// Reference-counted float memory. A copy refers to the same floats; whoever holds one keeps them
/// alive, which is how a message being sent protects its payload.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  /// For floats that will be sent: where processes of this machine can read them (tensor_memory.h).
  static FloatBuffer sendable(std::int64_t elements);
  explicit FloatBuffer(std::int64_t elements) : elements_(elements) {
    // calloc takes large ranges zeroed from the kernel: no page is touched before it is used.
    const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
    std::size_t space = bytes + kBufferAlignmentBytes;
    void* raw = std::calloc(1, space);
    POSEIDON_CHECK(raw != nullptr, "out of memory");
    void* aligned = raw;
    auto* memory = static_cast<float*>(std::align(kBufferAlignmentBytes, bytes, aligned, space));
    memory_ = std::shared_ptr<float>(memory, [raw](float*) { std::free(raw); });
  }

  std::span<float> floats() { return {memory_.get(), static_cast<std::size_t>(elements_)}; }
  std::span<const float> floats() const {
    return {memory_.get(), static_cast<std::size_t>(elements_)};
  }
  /// Of somebody else's allocation, sendable where that is.
  FloatBuffer(std::shared_ptr<float> memory, std::int64_t elements)
      : memory_(std::move(memory)), elements_(elements) {}

  const std::shared_ptr<float>& owner() const { return memory_; }
  std::int64_t size_bytes() const { return elements_ * static_cast<std::int64_t>(sizeof(float)); }

  /// Whether the floats may be overwritten.
  bool exclusive() const { return held_by_nobody_else(memory_); }

 private:
  std::shared_ptr<float> memory_;
  std::int64_t elements_ = 0;
};

/// Reference-counted bytes to be sent, for payloads that are no float32. Allocated like
/// FloatBuffer::sendable, and under the same rule: who holds a copy of owner() finds them
/// unchanged.
class PayloadBuffer {
 public:
  PayloadBuffer() = default;
  static PayloadBuffer sendable(std::size_t bytes);

  /// For writing, which is allowed to whoever is the only holder. When somebody else still reads
  /// the bytes, takes fresh memory first: the old content is theirs alone from then on.
  std::span<std::byte> writable() {
    if (size_ > 0 && !held_by_nobody_else(memory_)) *this = sendable(size_);
    return {memory_.get(), size_};
  }
  absl::Span<const std::byte> bytes() const { return {memory_.get(), size_}; }
  const std::shared_ptr<std::byte>& owner() const { return memory_; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(size_); }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t size_ = 0;
};

/// The bytes of floats, as messages carry them (little endian, like every machine we run on).
inline absl::Span<const std::byte> as_payload(std::span<const float> floats) {
  return {reinterpret_cast<const std::byte*>(floats.data()), floats.size_bytes()};
}

}  // namespace poseidon
