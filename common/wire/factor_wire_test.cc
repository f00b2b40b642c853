#include "common/wire/factor_wire.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "poseidon/v1/factors.pb.h"

namespace poseidon::factor_wire_test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kPieceElements = 8;

/// Layer 0 goes by PS, layer 1 by SFB: M = 3, N = 5, with bias; K = 4.
Plan small_plan() {
  Plan plan;
  plan.epoch = Epoch(7);
  plan.batch_size = 4;
  plan.worker_addresses = {"a:1", "b:1", "c:1"};
  plan.server_addresses = {"s:1"};
  plan.layers = {{.name = "conv", .type = "convolution", .shape = {6}, .parameters = 6},
                 {.name = "fc",
                  .type = "fully_connected",
                  .shape = {3, 5},
                  .parameters = 18,
                  .scheme = Scheme::kSfb}};
  plan.chunks = {{.elements = 6}};
  EXPECT_TRUE(validate(plan).ok());
  return plan;
}

FactorHeader header_of(FactorKind kind, std::int64_t offset = 0) {
  FactorHeader header;
  header.kind = kind;
  header.epoch = Epoch(7);
  header.iteration = 123456789012;
  header.rank = WorkerRank(2);
  header.layer = LayerIndex(1);
  header.rows = kind == FactorKind::kParameters ? 0 : 4;
  header.offset = offset;
  header.element_type = ElementType::kFloat32;
  return header;
}

std::string bytes_of(const FactorHeader& header, const std::vector<float>& floats) {
  std::string bytes = encode_prefix(header, floats.size() * sizeof(float)).str();
  bytes.append(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float));
  return bytes;
}

Bytes in_pieces(const std::string& bytes, std::size_t piece_bytes) {
  auto memory = std::make_shared<std::string>(bytes);
  Bytes result;
  const absl::Span<const std::byte> all(reinterpret_cast<const std::byte*>(memory->data()),
                                        memory->size());
  for (std::size_t at = 0; at < all.size(); at += piece_bytes) {
    result.pieces.push_back(all.subspan(at, piece_bytes));
  }
  result.owner = std::move(memory);
  return result;
}

TEST(FactorWire, PrefixAndPayloadAreTheProtobufMessage) {
  FactorHeader header = header_of(FactorKind::kOutputGradient, 8);
  header.digest = 0xF123456789ABCDEF;
  header.proof = 0xFEDCBA9876543210;
  v1::FactorMessage message;
  ASSERT_TRUE(message.ParseFromString(bytes_of(header, {1.0f, -2.5f, 3.25f})));
  EXPECT_EQ(message.protocol_version(), kProtocolVersion);
  EXPECT_EQ(message.kind(), v1::FACTOR_KIND_OUTPUT_GRADIENT);
  EXPECT_EQ(message.epoch(), 7u);
  EXPECT_EQ(message.iteration(), 123456789012u);
  EXPECT_EQ(message.worker_rank(), 2u);
  EXPECT_EQ(message.layer(), 1u);
  EXPECT_EQ(message.rows(), 4u);
  EXPECT_EQ(message.offset(), 8u);
  EXPECT_EQ(message.element_type(), v1::ELEMENT_TYPE_FLOAT32);
  EXPECT_EQ(message.digest(), 0xF123456789ABCDEFu);
  EXPECT_EQ(message.proof(), 0xFEDCBA9876543210u);
  EXPECT_EQ(message.payload().size(), 12u);
}

TEST(FactorWire, DecodesWhatProtobufEncodesHoweverItIsSplit) {
  v1::FactorMessage message;
  message.set_protocol_version(kProtocolVersion);
  message.set_kind(v1::FACTOR_KIND_INPUT);
  message.set_epoch(9);
  message.set_iteration(17);
  message.set_worker_rank(1);
  message.set_layer(3);
  message.set_rows(32);
  message.set_offset(524288);
  message.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  message.set_digest(42);
  message.set_payload(std::string(40, 'x'));
  const std::string bytes = message.SerializeAsString();
  for (std::size_t piece = 1; piece < bytes.size(); ++piece) {
    const auto decoded = decode_factor(in_pieces(bytes, piece));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->header.kind, FactorKind::kInput);
    EXPECT_EQ(decoded->header.epoch, Epoch(9));
    EXPECT_EQ(decoded->header.iteration, 17);
    EXPECT_EQ(decoded->header.rank, WorkerRank(1));
    EXPECT_EQ(decoded->header.layer, LayerIndex(3));
    EXPECT_EQ(decoded->header.rows, 32);
    EXPECT_EQ(decoded->header.offset, 524288);
    EXPECT_EQ(decoded->header.digest, 42u);
    EXPECT_EQ(decoded->payload.size(), 40u);
  }
}

TEST(FactorWire, GarbageIsRefusedOrDecodedNeverWorse) {
  SplitMix64 random(3);
  const std::string good = bytes_of(header_of(FactorKind::kInput), {1, 2, 3, 4, 5, 6, 7, 8});
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good.substr(0, random.below(good.size() + 1));
    for (std::uint64_t flips = random.below(4); flips > 0 && !bytes.empty(); --flips) {
      bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
    }
    const auto decoded = decode_factor(in_pieces(bytes, 1 + random.below(9)));
    if (decoded.ok()) continue;
    ++refused;
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr("FactorMessage"));
  }
  EXPECT_GT(refused, 1000);
}

TEST(FactorWire, EveryFieldIsCheckedAgainstThePlan) {
  const Plan plan = small_plan();
  const auto check = [&](FactorHeader header, std::size_t floats) {
    return check_against_plan(header, floats * sizeof(float), plan, kPieceElements);
  };
  // dY has 12 elements: 8 and 4. X has 20: 8, 8, 4. The parameters are 18: 8, 8, 2.
  EXPECT_FALSE(check(header_of(FactorKind::kOutputGradient, 0), 8));
  EXPECT_FALSE(check(header_of(FactorKind::kOutputGradient, 8), 4));
  EXPECT_FALSE(check(header_of(FactorKind::kInput, 16), 4));
  EXPECT_FALSE(check(header_of(FactorKind::kParameters, 16), 2));
  FactorHeader digest = header_of(FactorKind::kDigest);
  digest.rows = 0;
  digest.element_type = ElementType::kNone;
  EXPECT_FALSE(check(digest, 0));
  digest.kind = FactorKind::kHello;
  EXPECT_FALSE(check(digest, 0));

  struct Case {
    DataRefusal reason;
    const char* words;
    std::function<void(FactorHeader&)> spoil;
    std::size_t floats = 8;
  };
  const std::vector<Case> cases = {
      {DataRefusal::kVersion, "same Poseidon version",
       [](FactorHeader& h) { h.protocol_version = 99; }},
      {DataRefusal::kEpoch, "epoch 6", [](FactorHeader& h) { h.epoch = Epoch(6); }},
      {DataRefusal::kRank, "3 workers", [](FactorHeader& h) { h.rank = WorkerRank(3); }},
      {DataRefusal::kKind, "kind 6", [](FactorHeader& h) { h.kind = static_cast<FactorKind>(6); }},
      {DataRefusal::kKind, "kind 0", [](FactorHeader& h) { h.kind = static_cast<FactorKind>(0); }},
      {DataRefusal::kLayer, "2 layers", [](FactorHeader& h) { h.layer = LayerIndex(2); }},
      {DataRefusal::kLayer, "does not go by SFB", [](FactorHeader& h) { h.layer = LayerIndex(0); }},
      {DataRefusal::kRows, "3 rows for layer fc, the plan says 4",
       [](FactorHeader& h) { h.rows = 3; }},
      {DataRefusal::kOffset, "offset 4", [](FactorHeader& h) { h.offset = 4; }},
      {DataRefusal::kOffset, "below 12", [](FactorHeader& h) { h.offset = 16; }},
      {DataRefusal::kOffset, "offset", [](FactorHeader& h) { h.offset = INT64_MAX - 7; }},
      {DataRefusal::kElementType, "element type 9",
       [](FactorHeader& h) { h.element_type = static_cast<ElementType>(9); }},
      {DataRefusal::kSize, "payload of 28 bytes", [](FactorHeader& /*h*/) {}, 7},
      {DataRefusal::kSize, "payload of 36 bytes", [](FactorHeader& /*h*/) {}, 9},
      {DataRefusal::kSize, "expected 16", [](FactorHeader& h) { h.offset = 8; }},
      {DataRefusal::kRows, "the plan says 0",
       [](FactorHeader& h) { h.kind = FactorKind::kParameters; }},
      {DataRefusal::kElementType, "expected 0",
       [](FactorHeader& h) {
         h.kind = FactorKind::kDigest;
         h.rows = 0;
       }},
  };
  for (const Case& c : cases) {
    FactorHeader header = header_of(FactorKind::kOutputGradient);
    c.spoil(header);
    const Objection objection = check(header, c.floats);
    EXPECT_EQ(data_refusal_name(objection.reason), std::string(data_refusal_name(c.reason)))
        << objection.message;
    EXPECT_THAT(objection.message, HasSubstr(c.words));
  }
}

}  // namespace
}  // namespace poseidon::factor_wire_test
