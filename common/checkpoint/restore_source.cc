#include "common/checkpoint/restore_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/wire/protobuf_walk.h"

namespace poseidon {
namespace {

absl::StatusOr<StoreRequest> read_request(const RestoreSource& source, PieceId piece,
                                          std::uint32_t slot) {
  const CheckpointPiece& place = source.pieces[piece.value()];
  StoreRequest request;
  request.address = source.addresses[place.holder.value()];
  if (place.second) request.second_address = source.addresses[place.second->value()];
  if (request.address.empty()) std::swap(request.address, request.second_address);
  if (request.address.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "piece ", piece.value(), " of checkpoint ", snapshot_name(source.snapshot),
        ": no connected server has it; start poseidon-server with the --data-dir ", "that has it"));
  }
  request.header.operation = StoreOperation::kRead;
  request.header.snapshot = source.snapshot;
  request.header.piece = piece;
  request.header.slot = slot;
  return request;
}

/// Elements [first, first + elements) of `values`.
Bytes part_of(const Bytes& values, std::int64_t first, std::int64_t elements) {
  Bytes part;
  part.owner = values.owner;
  protobuf::Cursor cursor(values);
  cursor.skip(static_cast<std::uint64_t>(first) * sizeof(float), nullptr);
  cursor.skip(static_cast<std::uint64_t>(elements) * sizeof(float), &part);
  return part;
}

}  // namespace

v1::RestoreSource restore_to_message(const CheckpointManifest& manifest,
                                     const std::vector<std::string>& addresses) {
  v1::RestoreSource message;
  message.set_snapshot(manifest.snapshot.value());
  message.set_samples(manifest.samples);
  for (const std::string& address : addresses) message.add_addresses(address);
  for (const CheckpointPiece& piece : manifest.pieces) {
    v1::RestorePiece* out = message.add_pieces();
    out->set_layer(piece.layer ? piece.layer->value() + 1 : 0);
    out->set_offset(piece.offset);
    out->set_elements(piece.elements);
    out->set_holder(piece.holder.value());
    out->set_second(piece.second ? piece.second->value() + 1 : 0);
  }
  return message;
}

absl::StatusOr<RestoreSource> restore_from_message(const v1::RestoreSource& message) {
  RestoreSource source;
  source.snapshot = SnapshotId(message.snapshot());
  source.samples = message.samples();
  source.addresses.assign(message.addresses().begin(), message.addresses().end());
  for (const v1::RestorePiece& in : message.pieces()) {
    constexpr std::int64_t kMax = std::int64_t{1} << 61;
    if (in.holder() >= source.addresses.size() || in.second() > source.addresses.size() ||
        in.offset() < 0 || in.elements() < 0 || in.offset() > kMax || in.elements() > kMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("the assignment's checkpoint: piece ", source.pieces.size(), " (offset ",
                       in.offset(), ", elements ", in.elements(), ", holder ", in.holder(), " of ",
                       source.addresses.size(), ") makes no sense"));
    }
    CheckpointPiece piece;
    if (in.layer() > 0) piece.layer = LayerIndex(in.layer() - 1);
    piece.offset = in.offset();
    piece.elements = in.elements();
    piece.holder = ServerIndex(in.holder());
    if (in.second() > 0) piece.second = ServerIndex(in.second() - 1);
    source.pieces.push_back(piece);
  }
  return source;
}

absl::Status append_range_requests(const RestoreSource& source, const PieceIndex& pieces,
                                   LayerIndex layer, std::int64_t offset, std::int64_t elements,
                                   int state_slots, const TakeRange& take,
                                   std::vector<StoreRequest>& requests) {
  POSEIDON_ASSIGN_OR_RETURN(const std::vector<PieceRange> ranges,
                            pieces.covering(layer, offset, elements));
  for (const PieceRange& range : ranges) {
    const std::int64_t piece_elements = source.pieces[range.piece.value()].elements;
    for (std::uint32_t slot = 0; slot <= static_cast<std::uint32_t>(state_slots); ++slot) {
      POSEIDON_ASSIGN_OR_RETURN(StoreRequest request, read_request(source, range.piece, slot));
      request.on_data = [range, piece_elements, slot, take](const Bytes& data) {
        if (data.size() != static_cast<std::size_t>(piece_elements) * sizeof(float)) {
          return absl::DataLossError(absl::StrCat("slot ", slot, " of piece ", range.piece.value(),
                                                  " has ", data.size(), " bytes for ",
                                                  piece_elements, " elements"));
        }
        return take(slot, range.in_range, part_of(data, range.in_piece, range.elements));
      };
      requests.push_back(std::move(request));
    }
  }
  return absl::OkStatus();
}

absl::Status append_own_state_request(const RestoreSource& source,
                                      std::function<absl::Status(const Bytes&)> take,
                                      std::vector<StoreRequest>& requests) {
  for (std::uint32_t i = 0; i < source.pieces.size(); ++i) {
    if (source.pieces[i].layer) continue;
    POSEIDON_ASSIGN_OR_RETURN(StoreRequest request, read_request(source, PieceId(i), 0));
    request.on_data = std::move(take);
    requests.push_back(std::move(request));
    return absl::OkStatus();
  }
  return absl::DataLossError("the checkpoint does not have worker 0's own state");
}

}  // namespace poseidon
