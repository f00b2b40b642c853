#include "server/store/snapshot_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace poseidon {
namespace {

static_assert(std::endian::native == std::endian::little, "indexes hold native numbers");

constexpr std::size_t kKeyBytes = sizeof(std::uint64_t) + sizeof(std::uint32_t);
/// Piece and first array share the first word.
constexpr std::size_t kEntryWords = 5;
constexpr std::size_t kEntryBytes = kEntryWords * sizeof(std::uint64_t);
/// Of one array: its bytes must be countable.
constexpr std::uint64_t kMaxElements = std::numeric_limits<std::int64_t>::max() / sizeof(float);

template <typename Number>
void append_big_endian(std::string& out, Number value) {
  for (std::size_t i = sizeof value; i-- > 0;) out.push_back(static_cast<char>(value >> (8 * i)));
}

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) value = (value << 8) | static_cast<std::uint8_t>(byte);
  return value;
}

}  // namespace

std::string encode_key(const ArrayKey& key) {
  std::string bytes;
  append_big_endian(bytes, key.snapshot.value());
  append_big_endian(bytes, key.number);
  return bytes;
}

std::optional<ArrayKey> decode_key(std::string_view key) {
  if (key.size() != kKeyBytes) return std::nullopt;
  return ArrayKey{SnapshotId(big_endian(key.substr(0, sizeof(std::uint64_t)))),
                  static_cast<ArrayNumber>(big_endian(key.substr(sizeof(std::uint64_t))))};
}

std::string encode_index(const SnapshotIndex& index) {
  std::string bytes;
  bytes.reserve(index.size() * kEntryBytes);
  for (const auto& [piece, entry] : index) {
    const std::array<std::uint64_t, kEntryWords> words = {
        (std::uint64_t{entry.first} << 32) | piece.value(),
        static_cast<std::uint64_t>(entry.version), entry.elements[0], entry.elements[1],
        entry.elements[2]};
    bytes.append(reinterpret_cast<const char*>(words.data()), kEntryBytes);
  }
  return bytes;
}

std::optional<SnapshotIndex> decode_index(std::string_view bytes) {
  if (bytes.size() % kEntryBytes != 0) return std::nullopt;
  SnapshotIndex index;
  for (; !bytes.empty(); bytes.remove_prefix(kEntryBytes)) {
    std::array<std::uint64_t, kEntryWords> words{};
    std::memcpy(words.data(), bytes.data(), kEntryBytes);
    const PieceId piece(static_cast<std::uint32_t>(words[0]));
    const bool in_order = index.empty() || index.rbegin()->first < piece;
    if (!in_order || std::max({words[2], words[3], words[4]}) > kMaxElements) return std::nullopt;
    index.emplace_hint(index.end(), piece,
                       IndexEntry{.version = static_cast<Iteration>(words[1]),
                                  .first = static_cast<ArrayNumber>(words[0] >> 32),
                                  .elements = {words[2], words[3], words[4]}});
  }
  return index;
}

}  // namespace poseidon
