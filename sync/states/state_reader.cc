#include "sync/states/state_reader.h"

#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/unreachable.h"
#include "common/wire/wire.h"

namespace poseidon {

absl::Status StateReader::read(std::vector<StoreRequest> requests) {
  struct Reading {
    std::unique_ptr<StoreTransfer> transfer;  // the loop's
    std::optional<absl::Status> end;          // under mutex_
  };
  auto reading = std::make_shared<Reading>();
  auto shared = std::make_shared<std::vector<StoreRequest>>(std::move(requests));
  stores_->post([this, reading, shared] {
    reading->transfer = std::make_unique<StoreTransfer>(stores_, options_.transfer);
    reading->transfer->start(std::move(*shared),
                             [this, reading = reading.get()](const absl::Status& end) {
                               // Words of its own: how absl shares them no race detector sees.
                               const MutexLock lock(mutex_);
                               reading->end = reworded(end, end.message());
                               changed_.notify_all();
                             });
  });
  absl::Status status;
  {
    // The transfer has a deadline of its own.
    MutexLock lock(mutex_);
    changed_.wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return reading->end || !cancelled_.ok();
    });
    status = reading->end ? *std::move(reading->end) : cancelled_;
  }
  auto ended = std::make_shared<std::promise<void>>();  // outlives set_value on the loop
  stores_->post([reading, ended] {
    reading->transfer.reset();  // from now on no transfer writes to the caller's memory
    ended->set_value();
  });
  ended->get_future().wait();  // bounded: the loop runs all posted tasks, and none of them blocks
  return status;
}

absl::Status StateReader::read_held(const std::string& address, Epoch epoch, Iteration version,
                                    std::span<float> values) {
  StoreRequest request;
  request.address = address;
  request.header.operation = StoreOperation::kReadHeld;
  request.header.snapshot = snapshot_id(epoch, version);
  request.on_data = [values](const Bytes& data) { return copy_statistics(data, values); };
  absl::Status status;
  for (Nanoseconds waited{0}; waited < options_.give_up_after; waited += options_.pause) {
    status = read({request});
    if (!absl::IsNotFound(status)) return status;
    MutexLock lock(mutex_);
    changed_.wait_for(mutex_, options_.pause,
                      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !cancelled_.ok(); });
  }
  return absl::DeadlineExceededError(absl::StrFormat(
      "after %.1f s: %s; is worker 0 there?", seconds(options_.give_up_after), status.message()));
}

void StateReader::cancel(const absl::Status& reason) {
  const MutexLock lock(mutex_);
  if (cancelled_.ok()) cancelled_ = reason;
  changed_.notify_all();
}

absl::Status copy_statistics(const Bytes& data, std::span<float> values) {
  if (data.size() != values.size_bytes()) {
    return absl::DataLossError(absl::StrCat("running statistics of ", data.size(), " bytes for ",
                                            values.size(), " values"));
  }
  copy_payload(data, values);
  return absl::OkStatus();
}

}  // namespace poseidon
