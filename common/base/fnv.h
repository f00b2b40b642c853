#pragma once

// The 64-bit FNV-1a hash (Fowler, Noll, Vo). Pure.
//
// Called by: models/net/initialise.h, worker/engine/dropout_mask.h, common/base/process_load.h,
// common/tensor/shared_arena.h. Calls: nothing.

#include <cstdint>
#include <string_view>

namespace poseidon {

/// Turns names into seeds and numbers that are the same in every process and language.
constexpr std::uint64_t fnv1a_64(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  }
  return hash;
}

}  // namespace poseidon
