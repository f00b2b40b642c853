#pragma once

// Reads pieces of a checkpoint from servers' stores, or writes pieces to them. One batch of
// requests; stores answer in any order; the batch ends when all requests are answered or one fails.
//
// Called by: servers and workers that resume from a checkpoint, and workers that add pieces to one.
// Calls: server/store/store_service.h on the other side.
//
// Everything here runs on the transport's loop and holds no lock.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/transport/transport.h"
#include "common/wire/store_wire.h"

namespace poseidon {

struct StoreRequest {
  std::string address;  ///< HOST:PORT of the store
  /// READ: the store to ask when the first does not answer, lacks the piece or has it damaged; "":
  /// none.
  std::string second_address;
  StoreHeader header;                   ///< the transfer sets its request number
  absl::Span<const std::byte> payload;  ///< WRITE, HOLD
  std::shared_ptr<const void> owner;    ///< keeps the payload alive
  /// WRITE, instead of both: makes the payload when its turn comes.
  std::function<std::shared_ptr<const std::vector<float>>()> make_payload;
  /// READ: takes the data. An error, with its reason, ends the transfer; DATA_LOSS only when there
  /// is no other store to ask.
  std::function<absl::Status(const Bytes& data)> on_data;
  /// WRITE, HOLD: the store has it. May be empty.
  std::function<void()> on_stored;
};

struct StoreTransferOptions {
  /// The transfer fails when one store does not answer for this long, connected or not.
  Nanoseconds give_up_after = std::chrono::seconds(30);
  /// After this time without an answer, requests go to the second address, if they have one.
  Nanoseconds ask_second_after = std::chrono::seconds(5);
  /// Between two attempts to connect to one store.
  Nanoseconds reconnect_pause = Milliseconds(200);
  /// Most unanswered requests per store; others wait here.
  std::size_t window = 4;
  /// add() may bring more requests: only an error ends the transfer.
  bool stays_open = false;
};
/// For WRITE: the disk may first have to write what other clients sent at the same moment.
inline constexpr StoreTransferOptions kWriting{.give_up_after = std::chrono::minutes(2)};

/// One batch. Destroying it ends it without a callback.
class StoreTransfer {
 public:
  using Done = std::function<void(const absl::Status&)>;

  /// `transport` (for kStoreMethod) must outlive it.
  StoreTransfer(Transport* transport, StoreTransferOptions options = {});
  ~StoreTransfer();
  StoreTransfer(const StoreTransfer&) = delete;
  StoreTransfer& operator=(const StoreTransfer&) = delete;

  /// Once. `done` is called once, never from within this call, and may destroy the transfer. Its
  /// error names the store: UNAVAILABLE when it did not answer, otherwise the store's own error.
  void start(std::vector<StoreRequest> requests, Done done);
  /// Adds a request, over the same streams; after start, with options.stays_open. No effect once
  /// the transfer has ended. The caller bounds the number of unanswered requests.
  void add(StoreRequest request);

  /// Number of requests that went to their second address, and the reason for the first.
  std::size_t asked_second() const { return asked_second_; }
  const std::string& first_reason() const { return first_reason_; }

 private:
  class Connection;

  Connection& connection_to(const std::string& address);
  void enqueue(StoreRequest request);
  bool may_ask_second(const Connection& connection, const absl::Status& why) const;
  void ask_second(StoreRequest request, const std::string& why);
  void give_up(Connection& connection, const std::string& why);
  void connect(Connection& connection);
  void pump(Connection& connection);
  void on_message(Connection& connection, const Bytes& message);
  void on_closed(Connection& connection, const absl::Status& status);
  void watch();
  std::string explained(const std::string& what) const;
  void finish(const absl::Status& status);

  Transport* const transport_;
  const StoreTransferOptions options_;
  Done done_;
  std::vector<std::unique_ptr<Connection>> connections_;  ///< one per address
  std::size_t unanswered_ = 0;
  std::size_t asked_second_ = 0;
  std::string first_reason_;
  bool ended_ = false;
  /// The loop's timers may outlive this object; they check this flag first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
