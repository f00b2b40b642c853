#pragma once

// A server's store of checkpoint pieces, in memory, behind a real port. For tests.

#include <memory>
#include <optional>
#include <string>

#include "common/grpc/grpc_transport.h"
#include "common/wire/store_wire.h"
#include "gtest/gtest.h"
#include "server/store/checkpoint_keeper.h"
#include "server/store/memory_chunk_store.h"
#include "server/store/store_service.h"

namespace poseidon {

/// A server's store at an address of its own.
class TestStore {
 public:
  explicit TestStore(Epoch epoch)
      : keeper_(std::make_unique<MemoryChunkStore>(), &*disk_),
        stores_(&grpc_.add_method(kStoreMethod)),
        service_(stores_, &keeper_, &refusals_, {}) {
    keeper_.begin(epoch, 1, nullptr);
    const auto listening = stores_->listen("127.0.0.1:0", &service_);
    EXPECT_TRUE(listening.ok()) << listening.status();
    address_ = listening.value_or("");
    grpc_.start();
  }
  ~TestStore() {
    grpc_.stop();
    disk_.reset();
  }
  const std::string& address() const { return address_; }
  CheckpointKeeper& keeper() { return keeper_; }

 private:
  GrpcTransport grpc_;
  std::optional<BackgroundThread> disk_{std::in_place};
  CheckpointKeeper keeper_;
  Transport* const stores_;
  RefusalCounts refusals_;
  StoreService service_;
  std::string address_;
};

}  // namespace poseidon
