// Everything on the data path that is decoded by hand: chunks, factors, store messages, stream
// headers, norms. The first byte chooses, the second says where the message is cut.

#include "common/base/check.h"
#include "common/transport/stream_header.h"
#include "common/wire/factor_wire.h"
#include "common/wire/norm_wire.h"
#include "common/wire/store_wire.h"
#include "common/wire/wire.h"
#include "server/store/snapshot_index.h"
#include "tests/fuzz/input.h"
#include "tests/support/toy_plan.h"

namespace poseidon::fuzz {
namespace {

const Plan& plan() {
  static const Plan kPlan = [] {
    Plan made = testing_support::toy_plan(3, 2, {10, 12, 7}, 4);
    testing_support::send_by_factors(made, LayerIndex(1), 3, 4);
    return made;
  }();
  return kPlan;
}

/// What is decoded and encoded again is decoded to the same.
template <typename Decoded, typename Decode>
void check_round_trip(const Decoded& decoded, const Decode& decode) {
  const std::string payload = joined(decoded.payload);
  const std::string again = encode_prefix(decoded.header, payload.size()).str() + payload;
  const auto twice = decode(in_pieces(again, 1));
  POSEIDON_CHECK(twice.ok(), "what was encoded is decoded");
  POSEIDON_CHECK(joined(twice->payload) == payload, "the payload stays");
  POSEIDON_CHECK(encode_prefix(twice->header, payload.size()).str() + payload == again,
                 "the header stays");
}

void chunk(const Bytes& message) {
  const auto decoded = decode_chunk(message);
  if (!decoded.ok()) return;
  check_round_trip(*decoded, decode_chunk);
  if (check_against_plan(decoded->header, decoded->payload.size(), plan())) return;
  ++accepted;
  const auto elements =
      static_cast<std::size_t>(plan().chunks[decoded->header.chunk.value()].elements);
  const ElementType type = decoded->header.element_type;
  if (type == ElementType::kNone) return;
  if (decoded->payload.size() != elements * element_bytes(type)) return;  // norms, totals
  std::vector<float> values(elements);
  copy_payload(decoded->payload, values, type);
  add_payload(decoded->payload, values, type);
}

void factor(const Bytes& message) {
  const auto decoded = decode_factor(message);
  if (!decoded.ok()) return;
  check_round_trip(*decoded, decode_factor);
  if (!check_against_plan(decoded->header, decoded->payload.size(), plan(), 4)) ++accepted;
}

void store(const Bytes& message) {
  const auto decoded = decode_store(message);
  if (!decoded.ok()) return;
  ++accepted;
  check_round_trip(*decoded, decode_store);
}

void stream_header(const Bytes& message) {
  (void)begins_with_offer(message);
  const auto decoded = decode_stream_header(message);
  if (!decoded.ok()) return;
  POSEIDON_CHECK(decoded->bytes <= message.size(), "the header is part of the message");
  MessagePrefix again;
  append_stream_header(decoded->header, again);
  POSEIDON_CHECK(again.size() <= kMaxStreamHeaderBytes, "the bound holds");
  ++accepted;
}

/// A server's own, from its disk.
void snapshot_index(std::string_view bytes) {
  const auto index = decode_index(bytes);
  POSEIDON_CHECK(!index || encode_index(*index) == bytes, "an index is what was written");
  const auto key = decode_key(bytes);
  POSEIDON_CHECK(!key || encode_key(*key) == bytes, "likewise");
  if (index || key) ++accepted;
}

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  fuzz::Input input(data, size);
  const std::uint8_t what = input.byte();
  const std::size_t cut = input.byte();
  const Bytes message = fuzz::in_pieces(input.rest(), cut);
  switch (what % 7) {
    case 0:
      fuzz::chunk(message);
      break;
    case 1:
      fuzz::factor(message);
      break;
    case 2:
      fuzz::store(message);
      break;
    case 3:
      fuzz::stream_header(message);
      break;
    case 4:
      if (message.size() == norms_bytes(message.size() / norms_bytes(1))) {
        (void)decode_norms(message);
        ++fuzz::accepted;
      }
      break;
    case 6:
      fuzz::snapshot_index(input.rest());
      break;
    default:
      for (const NormScope scope : {NormScope::kNetwork, NormScope::kProgram}) {
        for (std::size_t parts = 0; totals_bytes(parts, scope) <= message.size(); ++parts) {
          if (totals_bytes(parts, scope) != message.size()) continue;
          (void)decode_totals(message, scope);
          ++fuzz::accepted;
        }
      }
      break;
  }
  return 0;
}
