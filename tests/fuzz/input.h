#pragma once

// Shared by the targets of this folder: splits the bytes of an input.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "common/transport/transport.h"

// libFuzzer's entry, or replay_main.cc's. Always returns 0; a finding ends the process.
// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer requires the name.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace poseidon::fuzz {

/// How often a decoder accepted its input, for accepted_test.cc. A fuzzer makes little progress
/// from a seed that is refused at its first bytes.
inline int accepted = 0;

/// One input, from front to back.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  /// 0 when nothing is left.
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view rest() const { return rest_; }
  /// `size` is at most what is left.
  void skip(std::size_t size) { rest_.remove_prefix(size); }

 private:
  std::string_view rest_;
};

/// `text` as a message that arrived in up to three pieces, cut after `first` bytes and in the
/// middle of what follows. Each piece has memory of its own, so that AddressSanitizer sees a step
/// beyond.
inline Bytes in_pieces(std::string_view text, std::size_t first) {
  auto owner = std::make_shared<std::vector<std::unique_ptr<std::byte[]>>>();
  Bytes bytes;
  const auto add = [&](std::string_view part) {
    if (part.empty()) return;
    auto& memory = owner->emplace_back(new std::byte[part.size()]);
    std::memcpy(memory.get(), part.data(), part.size());
    bytes.pieces.emplace_back(memory.get(), part.size());
  };
  first = first < text.size() ? first : text.size();
  const std::string_view behind = text.substr(first);
  add(text.substr(0, first));
  add(behind.substr(0, behind.size() / 2));
  add(behind.substr(behind.size() / 2));
  bytes.owner = std::move(owner);
  return bytes;
}

}  // namespace poseidon::fuzz
