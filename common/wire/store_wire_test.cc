#include "common/wire/store_wire.h"

#include <string>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/store.pb.h"

namespace poseidon::store_wire_test {
namespace {

using ::testing::HasSubstr;

Bytes bytes_of(const std::string& text) {
  Bytes bytes;
  bytes.pieces = {{reinterpret_cast<const std::byte*>(text.data()), text.size()}};
  return bytes;
}

StoreHeader some_header() {
  StoreHeader header;
  header.operation = StoreOperation::kWrite;
  header.request = 77;
  header.snapshot = snapshot_id(Epoch(12), 400);
  header.piece = PieceId(9);
  header.slot = 2;
  return header;
}

TEST(StoreWire, IsOrdinaryProtobuf) {
  const std::string payload = "some floats";
  const std::string wire = encode_prefix(some_header(), payload.size()).str() + payload;
  v1::StoreMessage stock;
  ASSERT_TRUE(stock.ParseFromString(wire));
  EXPECT_EQ(stock.operation(), v1::STORE_OPERATION_WRITE);
  EXPECT_EQ(stock.request(), 77u);
  EXPECT_EQ(stock.snapshot(), some_header().snapshot.value());
  EXPECT_EQ(stock.piece(), 9u);
  EXPECT_EQ(stock.slot(), 2u);
  EXPECT_EQ(stock.payload(), payload);

  const std::string again = stock.SerializeAsString();
  const auto decoded = decode_store(bytes_of(again));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->header.request, 77u);
  EXPECT_EQ(decoded->header.snapshot, some_header().snapshot);
  EXPECT_EQ(decoded->payload.size(), payload.size());
}

TEST(StoreWire, RefusesWhatNobodySays) {
  const auto refusal = [](const std::function<void(v1::StoreMessage&)>& change) {
    v1::StoreMessage message;
    message.set_protocol_version(kProtocolVersion);
    message.set_operation(v1::STORE_OPERATION_READ);
    change(message);
    const std::string wire = message.SerializeAsString();
    const auto decoded = decode_store(bytes_of(wire));
    return decoded.ok() ? std::string("accepted") : std::string(decoded.status().message());
  };
  EXPECT_EQ(refusal([](auto&) {}), "accepted");
  EXPECT_THAT(refusal([](auto& m) { m.set_protocol_version(9); }), HasSubstr("version 9"));
  EXPECT_THAT(refusal([](auto& m) { m.clear_operation(); }), HasSubstr("operation 0"));
  EXPECT_THAT(refusal([](auto& m) { m.set_operation(static_cast<v1::StoreOperation>(8)); }),
              HasSubstr("operation 8"));
  EXPECT_THAT(refusal([](auto& m) { m.set_slot(3); }), HasSubstr("slot 3"));
}

TEST(StoreWire, AnotherVersionIsToldFromWhatNobodySends) {
  StoreHeader header = some_header();
  header.slot = kMaxStateSlots + 1;
  EXPECT_EQ(decode_store(bytes_of(encode_prefix(header, 0).str())).status().code(),
            absl::StatusCode::kInvalidArgument);
  header.protocol_version = kProtocolVersion + 1;
  EXPECT_EQ(decode_store(bytes_of(encode_prefix(header, 0).str())).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(StoreWire, RandomBytesNeverCrash) {
  const std::string good = encode_prefix(some_header(), 5).str() + "abcde";
  SplitMix64 random(3);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string wire = good.substr(0, random.below(good.size() + 1));
    for (int flips = 0; flips < 3 && !wire.empty(); ++flips) {
      wire[random.below(wire.size())] = static_cast<char>(random.below(256));
    }
    if (!decode_store(bytes_of(wire)).ok()) ++refused;
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace poseidon::store_wire_test
