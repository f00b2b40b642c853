#pragma once

// Handlers and acceptors for tests of transports.
//
// Called by: transport_test.cc, grpc_transport_test.cc. Calls: common/transport/transport.h.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/threads/mutex.h"
#include "common/transport/transport.h"

namespace poseidon {

inline constexpr std::chrono::seconds kPatience{20};

/// Remembers its events.
class Recorder final : public StreamHandler {
 public:
  ReadNext on_message(Bytes message) override {
    const MutexLock lock(mutex_);
    messages_.push_back(joined(message));
    return pause_ ? ReadNext::kPause : ReadNext::kContinue;
  }
  void on_written() override {
    ++written_;
    if (on_written_) on_written_();
  }
  void on_closed(const absl::Status& status) override {
    const MutexLock lock(mutex_);
    closed_ = status;
  }

  std::vector<std::string> messages() {
    const MutexLock lock(mutex_);
    return messages_;
  }
  std::size_t count() {
    const MutexLock lock(mutex_);
    return messages_.size();
  }
  std::optional<absl::Status> closed() {
    const MutexLock lock(mutex_);
    return closed_;
  }

  std::unique_ptr<Stream> stream_;
  std::atomic<int> written_{0};
  std::atomic<bool> pause_{false};
  std::function<void()> on_written_;

 private:
  Mutex mutex_;
  std::vector<std::string> messages_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
};

/// Accepts one stream.
class OneStream final : public Acceptor {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    recorder_.stream_ = std::move(stream);
    accepted_ = true;
    return &recorder_;
  }
  Recorder recorder_;
  std::atomic<bool> accepted_{false};
};

}  // namespace poseidon
