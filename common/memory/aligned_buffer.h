#pragma once

// Reference-counted memory for tensors and payloads. The count allows sending without a copy: a
// message holds the memory while it is read, and a writer checks first whether anyone else still
// holds it.
//
// Called by: shards, routes and relays, which keep their tensors in it. An OutgoingMessage holds
// its owner until the message is sent, or, where the peer reads it in place
// (common/transport/paced_transport.h), until the peer releases it. Calls:
// common/memory/tensor_memory.h, which defines sendable().
//
// Sizes of FloatBuffer count floats, of PayloadBuffer bytes. New memory is zeroed. Any thread may
// drop a reference; only one thread at a time may change a buffer. Errors: the process aborts when
// there is no memory (POSEIDON_CHECK).

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

/// Every tensor range begins on a cache line, which suits vector loads and device libraries.
inline constexpr std::size_t kBufferAlignmentBytes = 64;

/// True when this is the only holder of the memory, so it may be overwritten. use_count() alone
/// gives no memory ordering. Taking one more reference is an acquire of the same counter, so the
/// last reader's reads and its release come before our writes.
template <typename T>
bool held_by_nobody_else(const std::shared_ptr<T>& memory) {
  if (memory.use_count() != 1) return false;
  const std::shared_ptr<T> acquire = memory;  // NOLINT: the copying is the point
  return acquire != nullptr;
}

/// Reference-counted float memory. A copy refers to the same floats and keeps them alive; this is
/// how a message in flight protects its payload.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  /// Allocates floats that will be sent, in memory that other processes of this machine can read
  /// (tensor_memory.h).
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
  /// Wraps existing memory; it is sendable if that memory is.
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

/// Reference-counted bytes to be sent, for payloads other than float32. Allocated like
/// FloatBuffer::sendable. The bytes do not change while anyone holds a copy of owner().
class PayloadBuffer {
 public:
  PayloadBuffer() = default;
  static PayloadBuffer sendable(std::size_t bytes);

  /// The bytes, for writing. When another holder still reads them, allocates fresh memory first and
  /// leaves the old memory to that holder.
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
