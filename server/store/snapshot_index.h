#pragma once

// The layout of a snapshot in an ordered store: its keys, and the index of its pieces. Pure.
//
// Called by: server/store/rocksdb_chunk_store.h, which gets pieces in any order. It writes each
// array (parameters, state0, state1) under the next number and the index under number 0, last. So
// everything is written once, in key order, and a snapshot without an index does not count. Calls:
// nothing.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// Number of an array within its snapshot; 0 is the index itself.
using ArrayNumber = std::uint32_t;
inline constexpr ArrayNumber kIndexNumber = 0;

struct IndexEntry {
  Iteration version = 0;
  ArrayNumber first = 0;                    ///< its first non-empty array; the others follow
  std::array<std::uint64_t, 3> elements{};  ///< float32 in parameters, state0, state1

  friend bool operator==(const IndexEntry&, const IndexEntry&) = default;
};

using SnapshotIndex = std::map<PieceId, IndexEntry>;

struct ArrayKey {
  SnapshotId snapshot;
  ArrayNumber number = kIndexNumber;
};

/// 12 bytes, big endian: the order of keys is the order of numbers.
std::string encode_key(const ArrayKey& key);
std::optional<ArrayKey> decode_key(std::string_view key);

std::string encode_index(const SnapshotIndex& index);
/// nullopt for bytes that encode_index did not write.
std::optional<SnapshotIndex> decode_index(std::string_view bytes);

}  // namespace poseidon
