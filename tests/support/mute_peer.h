#pragma once

// A peer that accepts every stream, sends nothing, and ends it a while later, like an unreachable
// node behind a slow network.

#include <memory>

#include "common/base/clock.h"
#include "common/transport/transport.h"

namespace poseidon::testing_support {

class MutePeer final : public StreamHandler, public Acceptor {
 public:
  MutePeer(Transport* transport, Nanoseconds holds) : transport_(transport), holds_(holds) {}

  StreamHandler* on_accept(std::unique_ptr<Stream> accepted) override {
    stream_ = std::move(accepted);
    transport_->post_after(holds_, [this] { stream_.reset(); });
    return this;
  }
  ReadNext on_message(Bytes /*message*/) override { return ReadNext::kContinue; }
  void on_written() override {}
  void on_closed(const absl::Status& /*status*/) override {}

 private:
  Transport* const transport_;
  const Nanoseconds holds_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace poseidon::testing_support
