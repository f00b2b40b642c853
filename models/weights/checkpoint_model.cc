#include "models/weights/checkpoint_model.h"

#include <future>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/grpc/grpc_transport.h"
#include "common/wire/store_wire.h"
#include "common/wire/wire.h"

namespace poseidon {

absl::Status fetch_pieces(std::vector<StoreRequest> requests, const CheckpointFetch& options) {
  GrpcTransport grpc({.security = options.security});
  Transport& stores = grpc.add_method(kStoreMethod);
  grpc.start();
  std::promise<absl::Status> ended;
  std::future<absl::Status> end = ended.get_future();
  StoreTransfer transfer(&stores, {.give_up_after = options.give_up_after});
  transfer.start(std::move(requests),
                 [&ended](const absl::Status& status) { ended.set_value(status); });
  // Its end is bounded: a store that is silent for too long ends the transfer.
  while (end.wait_for(options.interval) != std::future_status::ready) options.keep_held();
  const absl::Status status = end.get();
  grpc.stop();  // from now on no other thread touches the transfer
  return status;
}

CheckpointModel::CheckpointModel(ModelLayout layout) : layout_(std::move(layout)) {
  for (const LayoutLayer& layer : layout_.layers) {
    parameters_.emplace_back(static_cast<std::size_t>(layer.parameter_count()));
  }
  statistics_.resize(static_cast<std::size_t>(layout_.statistics_count()));
}

absl::StatusOr<std::vector<StoreRequest>> CheckpointModel::requests(const RestoreSource& source) {
  std::vector<StoreRequest> requests;
  const PieceIndex pieces(source.pieces);
  for (std::uint32_t l = 0; l < parameters_.size(); ++l) {
    const auto take = [values = std::span<float>(parameters_[l])](
                          std::uint32_t /*slot*/, std::int64_t offset, const Bytes& bytes) {
      copy_payload(bytes,
                   values.subspan(static_cast<std::size_t>(offset), bytes.size() / sizeof(float)));
      return absl::OkStatus();
    };
    POSEIDON_RETURN_IF_ERROR(append_range_requests(source, pieces, LayerIndex(l), 0,
                                                   static_cast<std::int64_t>(parameters_[l].size()),
                                                   /*state_slots=*/0, take, requests));
  }
  if (statistics_.empty()) return requests;
  const auto take = [this](const Bytes& bytes) {
    if (bytes.size() != statistics_.size() * sizeof(float)) {
      return absl::DataLossError(absl::StrCat("running statistics of ", bytes.size(), " bytes for ",
                                              statistics_.size(), " values"));
    }
    copy_payload(bytes, statistics_);
    return absl::OkStatus();
  };
  POSEIDON_RETURN_IF_ERROR(append_own_state_request(source, take, requests));
  return requests;
}

absl::StatusOr<EncodedModel> CheckpointModel::encode() const {
  std::vector<std::span<const float>> parameters(parameters_.begin(), parameters_.end());
  return EncodedModel::encode(layout_, parameters, statistics_);
}

}  // namespace poseidon
