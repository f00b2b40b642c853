#include "common/wire/wire.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/memory/aligned_buffer.h"
#include "common/tensor/float16.h"
#include "common/tensor/scan.h"
#include "gmock/gmock.h"
#include "poseidon/v1/data.pb.h"
#include "tests/support/teams.h"

namespace poseidon::wire_test {
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

ChunkHeader sample_header() {
  ChunkHeader header;
  header.kind = ChunkKind::kPushGradient;
  header.epoch = Epoch(7);
  header.iteration = 123456789012;
  header.rank = WorkerRank(3);
  header.chunk = ChunkId(200);
  header.offset = 1 << 20;
  header.element_type = ElementType::kFloat32;
  header.proof = 0xF123456789ABCDEF;
  return header;
}

TEST(Wire, PrefixAndPayloadAreTheProtobufMessage) {
  const std::vector<float> floats = {1.0f, -2.5f, 3.25f};
  std::string bytes = encode_prefix(sample_header(), 12).str();
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
  EXPECT_EQ(message.proof(), 0xF123456789ABCDEFu);
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
  std::string bytes = encode_prefix(sample_header(), 0).str();
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
    std::string bytes = encode_prefix(sample_header(), 64).str() + std::string(64, 'p');
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
  EXPECT_EQ(judge(0), DataRefusal::kNone) << "a pull may ask for exact parameters";
  EXPECT_EQ(judge(16), DataRefusal::kSize);
  header_.element_type = ElementType::kBfloat16;
  EXPECT_EQ(judge(0), DataRefusal::kElementType);
  header_.element_type = ElementType::kNone;
  EXPECT_EQ(judge(0), DataRefusal::kNone);
  EXPECT_EQ(judge(16), DataRefusal::kSize);
}

TEST_F(AgainstPlan, ElementTypeAndSizeFollowKindAndWireType) {
  const auto judged = [this](ChunkKind kind, ElementType type, std::size_t payload_bytes) {
    header_.kind = kind;
    header_.element_type = type;
    return check_against_plan(header_, payload_bytes, plan_);
  };
  const auto wrong = DataRefusal::kElementType;
  for (const auto wire : {ElementType::kBfloat16, ElementType::kFloat16}) {
    plan_.wire_type = wire;
    const auto other =
        wire == ElementType::kFloat16 ? ElementType::kBfloat16 : ElementType::kFloat16;
    for (const auto kind : {ChunkKind::kPushGradient, ChunkKind::kParameters}) {
      EXPECT_FALSE(judged(kind, wire, 8));
      EXPECT_EQ(judged(kind, wire, 7).reason, DataRefusal::kSize);
      EXPECT_EQ(judged(kind, wire, 9).reason, DataRefusal::kSize);
      EXPECT_EQ(judged(kind, wire, 16).reason, DataRefusal::kSize) << "float32's bytes";
      EXPECT_EQ(judged(kind, other, 8).reason, wrong);
      EXPECT_EQ(judged(kind, ElementType::kNone, 8).reason, wrong);
      EXPECT_EQ(judged(kind, static_cast<ElementType>(4), 8).reason, wrong);
    }
    const Objection objection = judged(ChunkKind::kPushGradient, ElementType::kFloat32, 16);
    EXPECT_EQ(objection.reason, wrong);
    EXPECT_THAT(objection.message, HasSubstr("element type 1 for chunk 1, expected "));
    EXPECT_THAT(objection.message, HasSubstr("sync.wire_dtype is "));
    EXPECT_FALSE(judged(ChunkKind::kParameters, ElementType::kFloat32, 16)) << "an exact answer";
    EXPECT_EQ(judged(ChunkKind::kParameters, ElementType::kFloat32, 8).reason, DataRefusal::kSize);
    EXPECT_FALSE(judged(ChunkKind::kInitialise, ElementType::kFloat32, 16));
    EXPECT_EQ(judged(ChunkKind::kInitialise, wire, 8).reason, wrong);
    EXPECT_FALSE(judged(ChunkKind::kPull, ElementType::kFloat32, 0));
    EXPECT_FALSE(judged(ChunkKind::kPull, ElementType::kNone, 0));
    EXPECT_EQ(judged(ChunkKind::kPull, wire, 0).reason, wrong);
  }
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

/// What is left of a value in this type: the one-value functions are the reference.
float rounded(ElementType type, float value) {
  if (type == ElementType::kBfloat16) return from_bfloat16(to_bfloat16(value));
  if (type == ElementType::kFloat16) return from_float16(to_float16(value));
  return value;
}

class PayloadOf : public ::testing::TestWithParam<ElementType> {};

TEST_P(PayloadOf, IsRoundedOnceAndReadExactlyHoweverItIsCut) {
  const ElementType type = GetParam();
  SplitMix64 random(4);
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{1003}}) {
    std::vector<float> values(n), expected(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = (random.uniform() - 0.5f) * std::exp2(static_cast<float>(random.below(40)) - 30);
      expected[i] = rounded(type, values[i]);
    }
    std::vector<std::byte> encoded(n * element_bytes(type));
    encode_payload(type, values, encoded);
    const std::string bytes(reinterpret_cast<const char*>(encoded.data()), encoded.size());
    // Pieces of odd sizes: an element lies across two of them, of size 1 across up to four.
    for (const std::size_t piece :
         {std::size_t{1}, std::size_t{3}, std::size_t{5}, std::size_t{7}, std::size_t{4096}}) {
      const Bytes payload = in_pieces(bytes, piece);
      std::vector<float> copied(n), sum(n, 1.0f), read(n);
      copy_payload(payload, copied, type);
      add_payload(payload, sum, type);
      PayloadReader reader(payload, type);
      std::size_t at = 0;
      for (auto run = reader.next(); run.size > 0; run = reader.next()) {
        ASSERT_LE(run.size, n - at);
        widen_payload(type, run, read.data() + at);
        at += run.size;
      }
      EXPECT_EQ(at, n);
      EXPECT_EQ(copied, expected);
      EXPECT_EQ(read, expected);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], 1.0f + expected[i]) << i;
    }
  }
}

TEST_P(PayloadOf, HasTheSameBitsHoweverATeamSplitsIt) {
  const ElementType type = GetParam();
  constexpr std::size_t kElements = 50'003;
  SplitMix64 random(5);
  std::vector<float> values(kElements);
  for (float& value : values) value = random.uniform() - 0.5f;
  std::vector<std::byte> expected(kElements * element_bytes(type)), encoded(expected.size());
  encode_payload(type, values, expected);
  testing_support::OddTeam team;
  encode_payload(type, values, encoded, team);
  EXPECT_TRUE(encoded == expected);
  const std::string bytes(reinterpret_cast<const char*>(encoded.data()), encoded.size());
  for (const std::size_t piece : {std::size_t{13}, std::size_t{4097}, bytes.size()}) {
    const Bytes payload = in_pieces(bytes, piece);
    std::vector<float> whole(kElements), split(kElements);
    copy_payload(payload, whole, type);
    copy_payload(payload, split, type, team);
    EXPECT_TRUE(split == whole) << piece;
    add_payload(payload, whole, type);
    add_payload(payload, split, type, team);
    EXPECT_TRUE(split == whole) << piece;
  }
}

TEST_P(PayloadOf, NeedsNoAlignmentAndPassesEmptyPieces) {
  const ElementType type = GetParam();
  const std::vector<float> values = {1.5f, -2.0f, 0.25f};
  std::vector<std::byte> memory(1 + values.size() * element_bytes(type));
  std::vector<std::byte> encoded(values.size() * element_bytes(type));
  encode_payload(type, values, encoded);
  const std::span<std::byte> odd = std::span(memory).subspan(1);
  std::ranges::copy(encoded, odd.begin());
  Bytes payload;
  const absl::Span<const std::byte> all(odd.data(), odd.size());
  payload.pieces = {{}, all.subspan(0, 3), {}, {}, all.subspan(3, 1), all.subspan(4), {}};
  std::vector<float> copied(values.size());
  copy_payload(payload, copied, type);
  EXPECT_EQ(copied, values);
}

INSTANTIATE_TEST_SUITE_P(EveryType, PayloadOf,
                         ::testing::Values(ElementType::kFloat32, ElementType::kBfloat16,
                                           ElementType::kFloat16),
                         [](const auto& test) { return std::string(wire_dtype_name(test.param)); });

TEST(Wire, WhatIsNotFiniteIsFound) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    std::vector<float> values(40, -65504.0f);  // longer than any vector
    std::vector<std::byte> encoded(values.size() * element_bytes(type));
    const auto fits = [&](float value, std::size_t at) {
      values[at] = value;
      encode_payload(type, values, encoded);
      values[at] = 0.0f;
      return all_finite_16(type, encoded);
    };
    for (const std::size_t at : {std::size_t{0}, std::size_t{17}, std::size_t{39}}) {
      for (const float good : {0.0f, -0.0f, 65504.0f, 65519.0f, -1e-30f}) {
        EXPECT_TRUE(fits(good, at)) << good;
      }
      for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
        EXPECT_FALSE(fits(bad, at)) << bad;
      }
      EXPECT_EQ(fits(65520.0f, at), type != ElementType::kFloat16) << "rounds to 65536";
    }
  }
}

TEST(Wire, ElementTypesAreThoseOfTheProtocol) {
  EXPECT_EQ(static_cast<int>(ElementType::kFloat32), v1::ELEMENT_TYPE_FLOAT32);
  EXPECT_EQ(static_cast<int>(ElementType::kBfloat16), v1::ELEMENT_TYPE_BFLOAT16);
  EXPECT_EQ(static_cast<int>(ElementType::kFloat16), v1::ELEMENT_TYPE_FLOAT16);
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
}  // namespace poseidon::wire_test
