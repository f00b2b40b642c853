#pragma once

// The twin of the connections that carry sealed streams (common/grpc/sealed_sockets.h): streams of
// a MemoryNetwork, whose messages are seen by nobody and so are not sealed. A ticket is the address
// at which it lets in.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/grpc/sealed_transport.h"

namespace poseidon {

class MemoryCarrier final : public SealedCarrier {
 public:
  /// `endpoint` must outlive it, and it what was expected.
  explicit MemoryCarrier(Transport* endpoint) : endpoint_(endpoint) {}

  /// Hears of the secrets of each stream that is opened or offered.
  std::function<void(const SealEnds& secrets)> on_secrets_ = [](const SealEnds&) {};

  void reach(const std::string& /*address*/, const Ticket& ticket, Reached reached) override {
    endpoint_->post([this, ticket, reached = std::move(reached)] {
      reached(std::make_unique<Called>(this, address_of(ticket)));
    });
  }
  void expect(const Ticket& ticket, Arrived arrived) override {
    doors_.push_back(std::make_unique<Door>(this, std::move(arrived)));
    // Its bytes are random: nobody listens there.
    (void)endpoint_->listen(address_of(ticket), doors_.back().get());
  }

 private:
  static std::string address_of(const Ticket& ticket) {
    return absl::StrCat(
        "sealed/",
        absl::BytesToHexString({reinterpret_cast<const char*>(ticket.data()), ticket.size()}));
  }

  class Called final : public SealedConnection {
   public:
    Called(MemoryCarrier* carrier, std::string address)
        : carrier_(carrier), address_(std::move(address)) {}
    std::unique_ptr<Stream> open(const SealEnds& secrets, StreamHandler* handler) override {
      carrier_->on_secrets_(secrets);
      return carrier_->endpoint_->connect(address_, handler);
    }
    void offer(const SealEnds& /*secrets*/, Acceptor* /*acceptor*/) override {
      POSEIDON_CHECK(false, "a stream is offered to who was called");
    }

   private:
    MemoryCarrier* const carrier_;
    const std::string address_;
  };

  class Door final : public Acceptor {
   public:
    Door(MemoryCarrier* carrier, Arrived arrived)
        : carrier_(carrier), arrived_(std::move(arrived)) {}
    StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
      StreamHandler* handler = nullptr;
      arrived_(std::make_unique<Come>(carrier_, std::move(stream), &handler));
      return handler;
    }

   private:
    class Come final : public SealedConnection {
     public:
      Come(MemoryCarrier* carrier, std::unique_ptr<Stream> stream, StreamHandler** handler)
          : carrier_(carrier), stream_(std::move(stream)), handler_(handler) {}
      std::unique_ptr<Stream> open(const SealEnds& secrets, StreamHandler* handler) override {
        carrier_->on_secrets_(secrets);
        *handler_ = handler;
        return std::move(stream_);
      }
      void offer(const SealEnds& secrets, Acceptor* acceptor) override {
        carrier_->on_secrets_(secrets);
        *handler_ = acceptor->on_accept(std::move(stream_));
      }

     private:
      MemoryCarrier* const carrier_;
      std::unique_ptr<Stream> stream_;
      StreamHandler** const handler_;  ///< of the caller's, who waits
    };

    MemoryCarrier* const carrier_;
    const Arrived arrived_;
  };

  Transport* const endpoint_;
  std::vector<std::unique_ptr<Door>> doors_;
};

}  // namespace poseidon
