#include "common/transport/stream_header.h"

#include <memory>
#include <string>

#include "common/base/random.h"
#include "common/wire/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/data.pb.h"
#include "poseidon/v1/stream.pb.h"

namespace poseidon::stream_header_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Bytes in_pieces(std::string text, std::size_t piece_bytes) {
  auto owner = std::make_shared<std::string>(std::move(text));
  const absl::Span<const std::byte> all(reinterpret_cast<const std::byte*>(owner->data()),
                                        owner->size());
  Bytes bytes;
  for (std::size_t at = 0; at < all.size(); at += piece_bytes) {
    bytes.pieces.push_back(all.subspan(at, piece_bytes));
  }
  bytes.owner = owner;
  return bytes;
}

StreamHeader full_header() {
  StreamHeader header;
  header.accepted = true;
  header.payload_offset = ~0ULL;
  header.payload_bytes = ~0ULL;
  header.delivered = ~0ULL;
  header.asks = true;
  header.released.fill(~0ULL);
  header.released_count = StreamHeader::kMaxReleased;
  return header;
}

TEST(StreamHeader, ComesBackFromAnySplitAndLeavesTheMessage) {
  MessagePrefix prefix;
  append_stream_header(full_header(), prefix);
  std::string bytes = prefix.str();
  const std::size_t header_bytes = bytes.size();
  EXPECT_LE(header_bytes, kMaxStreamHeaderBytes);
  bytes += encode_prefix(ChunkHeader{.epoch = Epoch(3)}, 0).str();
  for (const std::size_t piece : {1, 2, 3, 7, 1000}) {
    const auto decoded = decode_stream_header(in_pieces(bytes, piece));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->bytes, header_bytes);
    EXPECT_TRUE(decoded->header.accepted);
    EXPECT_EQ(decoded->header.payload_offset, ~0ULL);
    EXPECT_EQ(decoded->header.payload_bytes, ~0ULL);
    EXPECT_EQ(decoded->header.delivered, ~0ULL);
    EXPECT_TRUE(decoded->header.asks);
    EXPECT_EQ(decoded->header.released_count, StreamHeader::kMaxReleased);
    EXPECT_EQ(decoded->header.released[15], ~0ULL);
  }
}

TEST(StreamHeader, IsProtobufBeforeAndAroundAMessage) {
  StreamHeader header;
  header.delivered = 300;
  header.asks = true;
  header.released = {7, 9};
  header.released_count = 2;
  MessagePrefix prefix;
  append_stream_header(header, prefix);
  std::string bytes = prefix.str();
  bytes += encode_prefix(ChunkHeader{.epoch = Epoch(3), .chunk = ChunkId(8)}, 0).str();
  v1::StreamHeader theirs;
  ASSERT_TRUE(theirs.ParseFromString(bytes));
  EXPECT_EQ(theirs.delivered(), 300U);
  EXPECT_TRUE(theirs.asks());
  EXPECT_THAT(theirs.released(), ElementsAre(7, 9));
  v1::ChunkMessage chunk;
  ASSERT_TRUE(chunk.ParseFromString(bytes));
  EXPECT_EQ(chunk.chunk_id(), 8U);
  // And what protobuf writes is read here.
  const auto decoded = decode_stream_header(in_pieces(theirs.SerializeAsString(), 2));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->header.delivered, 300U);
  EXPECT_TRUE(decoded->header.asks);
  EXPECT_THAT(decoded->header.released_messages(), ElementsAre(7, 9));
}

TEST(StreamHeader, NothingIsToldByAPlainMessage) {
  const auto decoded =
      decode_stream_header(in_pieces(encode_prefix(ChunkHeader{.epoch = Epoch(3)}, 0).str(), 4));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->bytes, 0U);
  EXPECT_FALSE(decoded->header.delivered.has_value());
  EXPECT_FALSE(decoded->header.asks);
  EXPECT_TRUE(decode_stream_header(Bytes{}).ok());
}

TEST(StreamHeader, AnOfferIsSeenAtTheBeginningOnly) {
  v1::StreamHeader first;
  first.mutable_offer()->set_bytes(5);
  EXPECT_TRUE(begins_with_offer(in_pieces(first.SerializeAsString(), 1)));
  EXPECT_FALSE(begins_with_offer(in_pieces("\xA2", 1)));
  EXPECT_FALSE(begins_with_offer(Bytes{}));
  EXPECT_THAT(decode_stream_header(in_pieces(first.SerializeAsString(), 1)).status().message(),
              HasSubstr("second offer"));
}

TEST(StreamHeader, HostileBytesAreRefusedOrNoHeader) {
  std::string many;
  for (int i = 0; i < 17; ++i) many += "\xD0\x06\x01";  // released = 1
  EXPECT_THAT(decode_stream_header(in_pieces(many, 5)).status().message(),
              HasSubstr("more than 16"));
  EXPECT_THAT(decode_stream_header(in_pieces("\xC8\x06\xFF", 5)).status().message(),
              HasSubstr("is truncated"));
  EXPECT_THAT(decode_stream_header(in_pieces("\xCA\x06\x01\x01", 5)).status().message(),
              HasSubstr("is not a number"));
  EXPECT_THAT(decode_stream_header(in_pieces("\xC0\x3E\x01", 5)).status().message(),
              HasSubstr("unknown"));
  SplitMix64 random(5);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random.below(40), '\0');
    for (char& c : bytes) c = static_cast<char>(random.next());
    if (!bytes.empty() && i % 2 == 0) bytes[0] = static_cast<char>(0xA0 + random.below(96));
    if (bytes.size() > 1 && i % 2 == 0) bytes[1] = 6;
    const auto decoded = decode_stream_header(in_pieces(bytes, 1 + random.below(9)));
    ASSERT_TRUE(!decoded.ok() || decoded->bytes <= bytes.size());
  }
}

}  // namespace
}  // namespace poseidon::stream_header_test
