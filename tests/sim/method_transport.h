#pragma once

// Distinguishes the methods of one address on the in-memory network.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/transport/transport.h"

namespace poseidon::sim {

inline constexpr const char* kStoreSuffix = "/store";
inline constexpr const char* kFactorSuffix = "/factors";
inline constexpr const char* kRelaySuffix = "/relay";

/// Speaks one method of an address, as a transport of that method would.
class MethodTransport final : public Transport {
 public:
  MethodTransport(Transport* base, std::string suffix) : base_(base), suffix_(std::move(suffix)) {}
  void post(std::function<void()> function) override {
    if (at_once) {
      function();
    } else {
      base_->post(std::move(function));
    }
  }
  void post_after(Nanoseconds delay, std::function<void()> function) override {
    base_->post_after(delay, std::move(function));
  }
  Nanoseconds now() const override { return base_->now(); }
  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override {
    return base_->connect(address + suffix_, handler);
  }
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override {
    return base_->listen(address + suffix_, acceptor);
  }
  /// A wait for a posted task, as at CheckpointGiver's end, would never end on the only thread.
  bool at_once = false;

 private:
  Transport* const base_;
  const std::string suffix_;
};

}  // namespace poseidon::sim
