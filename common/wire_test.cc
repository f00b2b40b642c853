#include "common/wire.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/aligned_buffer.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "poseidon/v1/data.pb.h"

namespace poseidon {
namespace {

using ::testing::HasSubstr;

/// The bytes in pieces of at most `piece_bytes`, as a receiver may get them.
Bytes in_pieces(const std::string& bytes, std::size_t piece_bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes.size());
  if (!bytes.empty()) std::memcpy(memory->data(), bytes.data(), bytes.size());
  Bytes result;
  const absl::Span<const std::byte> all(*memory);
  for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
    result.pieces.push_back(all.subspan(at, piece_bytes));
  }
  result.owner = std::move(memory);
  return result;
}

std::string joined(const Bytes& bytes) {
  std::string out;
  for (const auto& piece : bytes.pieces) {
    out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return out;
}

ChunkHeader sample_header() {
  ChunkHeader header;
  header.kind = ChunkKind::kPushGradient;
  header.epoch = Epoch(7);
  header.iteration = 123456789012;
  header.rank = WorkerRank(3);
  header.chunk = ChunkId(200);
  header.offset = 1 << 20;
  header.element_type = ElementType::kFloat32;
  return header;
}

TEST(Wire, PrefixAndPayloadAreTheProtobufMessage) {
  const std::vector<float> floats = {1.0f, -2.5f, 3.25f};
  std::string bytes = encode_prefix(sample_header(), 12);
  bytes.append(reinterpret_cast<const char*>(floats.data()), 12);
  v1::ChunkMessage message;
  ASSERT_TRUE(message.ParseFromString(bytes));
  EXPECT_EQ(message.protocol_version(), kProtocolVersion);
  EXPECT_EQ(message.kind(), v1::CHUNK_KIND_PUSH_GRADIENT);
  EXPECT_EQ(message.epoch(), 7u);
  EXPECT_EQ(message.iteration(), 123456789012u);
  EXPECT_EQ(message.worker_rank(), 3u);
  EXPECT_EQ(message.chunk_id(), 200u);
  EXPECT_EQ(message.offset(), 1u << 20);
  EXPECT_EQ(message.element_type(), v1::ELEMENT_TYPE_FLOAT32);
  EXPECT_EQ(std::memcmp(message.payload().data(), floats.data(), 12), 0);
  EXPECT_EQ(message.SerializeAsString(), bytes) << "byte for byte what protobuf would write";
}

TEST(Wire, DecodesWhatProtobufWritesHoweverItIsCutIntoPieces) {
  v1::ChunkMessage message;
  message.set_protocol_version(kProtocolVersion);
  message.set_kind(v1::CHUNK_KIND_PARAMETERS);
  message.set_epoch(1);
  message.set_chunk_id(2);
  message.set_payload(std::string(1001, 'x'));
  const std::string bytes = message.SerializeAsString();
  for (const std::size_t piece_bytes :
       {std::size_t{1}, std::size_t{3}, std::size_t{7}, bytes.size()}) {
    const auto decoded = decode_chunk(in_pieces(bytes, piece_bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->header.kind, ChunkKind::kParameters);
    EXPECT_EQ(decoded->header.chunk, ChunkId(2));
    EXPECT_EQ(joined(decoded->payload), message.payload());
  }
}

TEST(Wire, UnknownFieldsOfALaterVersionArePassedOver) {
  std::string bytes = encode_prefix(sample_header(), 0);
  bytes += std::string("\xA0\x06\x05", 3);                               // field 100, varint 5
  bytes += std::string("\xA5\x06\x01\x02\x03\x04", 6);                   // field 100, fixed32
  bytes += std::string("\xA1\x06\x01\x02\x03\x04\x05\x06\x07\x08", 10);  // field 100, fixed64
  bytes += std::string("\xA2\x06\x02hi", 5);                             // field 100, bytes
  const auto decoded = decode_chunk(in_pieces(bytes, 4));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->header.chunk, ChunkId(200));
}

TEST(Wire, GarbageIsRefusedNotCrashedOn) {
  SplitMix64 random(1);
  int accepted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bytes = encode_prefix(sample_header(), 64) + std::string(64, 'p');
    const std::uint64_t kind = random.below(3);
    if (kind == 0) bytes.resize(random.below(bytes.size()));
    for (std::uint64_t flips = kind == 1 ? 1 + random.below(8) : 0; flips > 0; --flips) {
      bytes[random.below(bytes.size())] = static_cast<char>(random.next());
    }
    if (kind == 2) {
      bytes.resize(random.below(200));
      for (char& c : bytes) c = static_cast<char>(random.next());
    }
    const auto decoded = decode_chunk(in_pieces(bytes, 1 + random.below(20)));
    v1::ChunkMessage stock;
    // Protobuf also knows groups, which we refuse: whatever we accept, it accepts.
    if (decoded.ok()) {
      ++accepted;
      ASSERT_TRUE(stock.ParseFromString(bytes)) << trial;
      ASSERT_EQ(joined(decoded->payload), stock.payload()) << trial;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 19000);
}

class AgainstPlan : public ::testing::Test {
 protected:
  AgainstPlan() {
    plan_.epoch = Epoch(7);
    plan_.worker_addresses = {"", "", "", ""};
    plan_.server_addresses = {"s"};
    plan_.layers = {{.name = "fc", .parameters = 10}};
    plan_.chunks = {{.layer = LayerIndex(0), .offset = 0, .elements = 6},
                    {.layer = LayerIndex(0), .offset = 6, .elements = 4}};
    header_ = sample_header();
    header_.chunk = ChunkId(1);
    header_.offset = 6;
  }
  DataRefusal judge(std::size_t payload_bytes = 16) {
    return check_against_plan(header_, payload_bytes, plan_).reason;
  }
  Plan plan_;
  ChunkHeader header_;
};

TEST_F(AgainstPlan, EveryFieldIsChecked) {
  EXPECT_EQ(judge(), DataRefusal::kNone);
  EXPECT_EQ(judge(15), DataRefusal::kSize);
  EXPECT_EQ(judge(20), DataRefusal::kSize);
  const ChunkHeader good = header_;
  header_.protocol_version = 99;
  EXPECT_EQ(judge(), DataRefusal::kVersion);
  header_ = good;
  header_.epoch = Epoch(6);
  EXPECT_EQ(judge(), DataRefusal::kEpoch);
  header_ = good;
  header_.rank = WorkerRank(4);
  EXPECT_EQ(judge(), DataRefusal::kRank);
  header_ = good;
  header_.chunk = ChunkId(2);
  EXPECT_EQ(judge(), DataRefusal::kChunk);
  header_ = good;
  header_.offset = 5;
  EXPECT_EQ(judge(), DataRefusal::kOffset);
  header_ = good;
  header_.element_type = ElementType::kNone;
  EXPECT_EQ(judge(), DataRefusal::kElementType);
  header_ = good;
  header_.kind = ChunkKind::kPull;
  EXPECT_EQ(judge(0), DataRefusal::kElementType);
  header_.element_type = ElementType::kNone;
  EXPECT_EQ(judge(0), DataRefusal::kNone);
  EXPECT_EQ(judge(16), DataRefusal::kSize);
}

TEST_F(AgainstPlan, TheMessageNamesValueAndExpectation) {
  const Objection objection = check_against_plan(header_, 15, plan_);
  EXPECT_THAT(objection.message, HasSubstr("15 bytes for chunk 1"));
  EXPECT_THAT(objection.message, HasSubstr("expected 16"));
}

TEST(Wire, PayloadsCopyAndAddAcrossOddPieces) {
  SplitMix64 random(3);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1003}}) {
    std::vector<float> values(n);
    for (float& v : values) v = random.uniform();
    const std::string bytes(reinterpret_cast<const char*>(values.data()), n * sizeof(float));
    for (const std::size_t piece :
         {std::size_t{1}, std::size_t{3}, std::size_t{6}, std::size_t{4096}}) {
      std::vector<float> copied(n), sum(n, 1.0f);
      copy_payload(in_pieces(bytes, piece), copied);
      add_payload(in_pieces(bytes, piece), sum);
      EXPECT_EQ(copied, values);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], 1.0f + values[i]) << i;
    }
  }
}

TEST(Wire, EveryRefusalHasItsOwnName) {
  std::vector<std::string> names;
  for (int i = 0; i < static_cast<int>(DataRefusal::kCount); ++i) {
    names.emplace_back(data_refusal_name(static_cast<DataRefusal>(i)));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  EXPECT_EQ(std::count(names.begin(), names.end(), "unknown"), 0);
}

}  // namespace
}  // namespace poseidon
