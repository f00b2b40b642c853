#pragma once

// The twin of gRPC's carrier of sealed streams (common/sealed_transport.h): the same endpoint of a
// MemoryNetwork, under another address. It lets everybody in, as a door does whose ticket somebody
// has copied: what a stream is worth its first message must show.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sealed_transport.h"

namespace poseidon {

class MemoryCarrier final : public SealedCarrier {
 public:
  /// `endpoint` must outlive it.
  explicit MemoryCarrier(Transport* endpoint) : endpoint_(endpoint) {}

  static std::string address_of(const std::string& address) {
    return absl::StrCat(address, "/sealed");
  }

  void reach(const std::string& address, const Ticket& /*ticket*/, Reached reached) override {
    endpoint_->post([endpoint = endpoint_, address, reached = std::move(reached)] {
      reached([endpoint, address](StreamHandler* handler) {
        return endpoint->connect(address_of(address), handler);
      });
    });
  }
  absl::Status listen(const std::string& address, Acceptor* acceptor) override {
    return endpoint_->listen(address_of(address), acceptor).status();
  }
  void expect(const Ticket& /*ticket*/) override {}

 private:
  Transport* const endpoint_;
};

}  // namespace poseidon
