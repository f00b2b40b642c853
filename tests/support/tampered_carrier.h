#pragma once

// A carrier of sealed streams with somebody in the middle.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/memory_carrier.h"
#include "common/sealed_transport.h"
#include "common/transport.h"

namespace poseidon::testing_support {

/// What somebody between the ends makes of a message: the messages that arrive in its place.
using Tamper = std::function<std::vector<std::string>(const std::string&)>;

/// A carrier on which somebody changes what the caller hears, or ends it in the other's name.
class TamperedStream final : public Stream, public StreamHandler {
 public:
  TamperedStream(const Tamper* tamper, const std::optional<absl::Status>* forged_end,
                 const bool* holds_end, StreamHandler* handler)
      : tamper_(tamper), forged_end_(forged_end), holds_end_(holds_end), handler_(handler) {}
  ~TamperedStream() override { *alive_ = false; }
  void attach(std::unique_ptr<Stream> inner) { inner_ = std::move(inner); }
  void write(OutgoingMessage message) override { inner_->write(std::move(message)); }
  void resume_reads() override { inner_->resume_reads(); }
  void close(const absl::Status& status) override { inner_->close(status); }
  std::string peer() const override { return inner_->peer(); }
  ReadNext on_message(Bytes message) override {
    if (*forged_end_) {
      handler_->on_closed(**forged_end_);
      return ReadNext::kContinue;
    }
    const std::shared_ptr<const bool> alive = alive_;
    for (const std::string& arrives : (*tamper_)(joined(message))) {
      if (*alive) handler_->on_message(received(arrives));
    }
    return ReadNext::kContinue;
  }
  void on_written() override { handler_->on_written(); }
  void on_closed(const absl::Status& status) override {
    if (!*holds_end_) handler_->on_closed(status);
  }

 private:
  static Bytes received(const std::string& text) {
    const auto owner = std::make_shared<std::string>(text);
    Bytes bytes;
    bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(owner->data()), owner->size());
    bytes.owner = owner;
    return bytes;
  }

  const Tamper* const tamper_;
  const std::optional<absl::Status>* const forged_end_;
  const bool* const holds_end_;
  StreamHandler* const handler_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Stream> inner_;
};

/// The caller's carrier, with somebody between.
class TamperedCarrier final : public SealedCarrier {
 public:
  explicit TamperedCarrier(Transport* endpoint) : endpoint_(endpoint), honest_(endpoint) {}
  void reach(const std::string& address, const Ticket& ticket, Reached reached) override {
    ticket_ = ticket;
    if (!failure_.ok()) {
      endpoint_->post([reached = std::move(reached), failure = failure_] { reached(failure); });
      return;
    }
    endpoint_->post([this, address, reached = std::move(reached)] {
      reached([this, address](StreamHandler* handler) {
        auto stream =
            std::make_unique<TamperedStream>(&tamper_, &forged_end_, &holds_end_, handler);
        stream->attach(endpoint_->connect(MemoryCarrier::address_of(address), stream.get()));
        return stream;
      });
    });
  }
  absl::Status listen(const std::string& address, Acceptor* acceptor) override {
    return honest_.listen(address, acceptor);
  }
  void expect(const Ticket& ticket) override { honest_.expect(ticket); }

  Tamper tamper_ = [](const std::string& message) { return std::vector<std::string>{message}; };
  std::optional<absl::Status> forged_end_;  ///< instead of the next message
  bool holds_end_ = false;                  ///< the connection seems to stay open
  absl::Status failure_;                    ///< of reaching
  Ticket ticket_{};

 private:
  Transport* const endpoint_;
  MemoryCarrier honest_;
};

}  // namespace poseidon::testing_support
