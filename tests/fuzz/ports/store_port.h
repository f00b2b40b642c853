#pragma once

// A server's port for nodes that restore.

#include <memory>
#include <string>

#include "common/base/check.h"
#include "common/wire/store_wire.h"
#include "server/store/checkpoint_keeper.h"
#include "server/store/memory_chunk_store.h"
#include "server/store/store_service.h"
#include "tests/fuzz/ports/port.h"

namespace poseidon::fuzz {

class StorePort final : public Port {
 public:
  explicit StorePort(Transport* transport)
      : disk_(transport, Milliseconds(1)),
        keeper_(std::make_unique<MemoryChunkStore>(), &disk_),
        service_(transport, &keeper_, &refusals_, {}) {
    POSEIDON_CHECK(transport->listen("victim", &service_).ok(), "a free address");
    begin();
  }

  Words believable(Input& input) override {
    const std::uint8_t how = input.byte();
    const std::uint8_t where = input.byte();
    StoreHeader header;
    header.operation = static_cast<StoreOperation>(1 + how % 8);
    header.request = how / 64 == 3 ? how : ++requests_;
    header.snapshot = snapshot_id(epoch_, where % 4);
    header.piece = PieceId(where / 4 % (kPieces + 1));
    header.slot = where / 64;
    const std::size_t elements = how / 8 % 4;
    const std::string payload = encoded(ElementType::kFloat32, elements, kNumbers[how / 32]);
    return {encode_prefix(header, payload.size()), payload};
  }

  void act(std::uint8_t how) override {
    const SnapshotId snapshot = snapshot_id(epoch_, how / 8 % 4);
    switch (how % 4) {
      case 0:
        epoch_ = Epoch(epoch_.value() + 1);
        begin();
        break;
      case 1:
        keeper_.forget(snapshot);
        break;
      case 2:
        (void)keeper_.put_held_state(snapshot, PieceId(how / 32));
        break;
      default:
        keeper_.end(epoch_);
        break;
    }
  }

 private:
  static constexpr std::uint32_t kPieces = 4;
  void begin() {
    keeper_.begin(epoch_, kPieces, [](const SnapshotResult&) {});
  }

  BackgroundOnLoop disk_;
  CheckpointKeeper keeper_;
  RefusalCounts refusals_;
  StoreService service_;
  Epoch epoch_{5};
  std::uint64_t requests_ = 0;
};

}  // namespace poseidon::fuzz
