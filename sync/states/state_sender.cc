#include "sync/states/state_sender.h"

#include <algorithm>
#include <future>
#include <map>
#include <utility>

#include "common/memory/aligned_buffer.h"
#include "common/threads/mutex.h"

namespace poseidon {

struct StateSender::Shared {
  std::unique_ptr<StoreTransfer> transfer;  ///< the loop's; null before the first, and at the end
  bool closed = false;                      ///< the loop's

  Mutex mutex;
  CondVar changed;
  std::map<std::string, Iteration> held
      ABSL_GUARDED_BY(mutex);  ///< by address: newest version that the server holds
  absl::Status failure ABSL_GUARDED_BY(mutex);

  std::function<void()> on_change;  ///< never changes

  void stop(const absl::Status& status) {
    {
      const MutexLock lock(mutex);
      if (failure.ok()) failure = status;
      changed.notify_all();
    }
    if (on_change) on_change();
  }
  void stored(const std::string& address, Iteration version) {
    {
      const MutexLock lock(mutex);
      held[address] = version;
      changed.notify_all();
    }
    if (on_change) on_change();
  }
  bool all_hold(Iteration version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return std::all_of(held.begin(), held.end(),
                       [version](const auto& entry) { return entry.second >= version; });
  }
};

StateSender::StateSender(Transport* stores, Epoch epoch, std::vector<std::string> addresses,
                         StoreTransferOptions options, std::function<void()> on_change)
    : epoch_(epoch),
      addresses_(std::move(addresses)),
      shared_(std::make_shared<Shared>()),
      stores_(stores) {
  for (const std::string& address : addresses_) shared_->held[address] = -1;
  shared_->on_change = std::move(on_change);
  options.stays_open = true;
  stores_->post([shared = shared_, stores, options] {
    if (shared->closed) return;
    shared->transfer = std::make_unique<StoreTransfer>(stores, options);
    shared->transfer->start(
        {}, [shared = shared.get()](const absl::Status& status) { shared->stop(status); });
  });
}

StateSender::~StateSender() {
  auto closed = std::make_shared<std::promise<void>>();  // outlives set_value on the loop
  stores_->post([shared = shared_, closed] {
    shared->closed = true;
    shared->transfer.reset();
    closed->set_value();
  });
  closed->get_future().wait();  // bounded: the loop runs all posted tasks, and none of them blocks
}

void StateSender::send(Iteration version, std::vector<float> state) {
  const auto values = std::make_shared<const std::vector<float>>(std::move(state));
  stores_->post([shared = shared_, addresses = addresses_, epoch = epoch_, version, values] {
    if (shared->transfer == nullptr) return;
    for (const std::string& address : addresses) {
      StoreRequest request;
      request.address = address;
      request.header.operation = StoreOperation::kHold;
      request.header.snapshot = snapshot_id(epoch, version);
      request.payload = as_payload(*values);
      request.owner = values;
      request.on_stored = [shared = shared.get(), address, version] {
        shared->stored(address, version);
      };
      shared->transfer->add(std::move(request));
    }
  });
}

absl::Status StateSender::wait(Iteration version) {
  MutexLock lock(shared_->mutex);
  // The transfer has a deadline of its own.
  shared_->changed.wait(shared_->mutex, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
    return shared_->all_hold(version) || !shared_->failure.ok();
  });
  return shared_->all_hold(version) ? absl::OkStatus() : shared_->failure;
}

absl::StatusOr<bool> StateSender::holds(Iteration version) const {
  const MutexLock lock(shared_->mutex);
  if (shared_->all_hold(version)) return true;
  if (!shared_->failure.ok()) return shared_->failure;
  return false;
}

void StateSender::cancel(const absl::Status& reason) { shared_->stop(reason); }

std::vector<std::string> own_state_addresses(const std::vector<CheckpointPiece>& pieces,
                                             const Plan& plan) {
  std::vector<std::string> addresses;
  for (const CheckpointPiece& piece : pieces) {
    if (piece.layer) continue;
    addresses.push_back(plan.server_addresses[piece.holder.value()]);
    if (piece.second) addresses.push_back(plan.server_addresses[piece.second->value()]);
  }
  return addresses;
}

}  // namespace poseidon
