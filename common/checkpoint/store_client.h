#pragma once

// Asks servers' stores for pieces of a checkpoint, or gives them some: one batch of requests,
// answered in any order of addresses, until all are or one cannot be.
//
// Before: a server or worker that goes on from a checkpoint, or a worker that adds to one. After:
// server/store/store_service.h on the other side.
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
  /// READ: who is asked when that store does not answer, does not have the piece or has it damaged;
  /// "": nobody.
  std::string second_address;
  StoreHeader header;                   ///< its request number is given by the transfer
  absl::Span<const std::byte> payload;  ///< WRITE, HOLD
  std::shared_ptr<const void> owner;    ///< keeps the payload alive
  /// WRITE, instead of both: makes the payload when its turn comes.
  std::function<std::shared_ptr<const std::vector<float>>()> make_payload;
  /// READ: takes the data. An error, with its reason, ends the transfer; DATA_LOSS only when there
  /// is nobody else to ask.
  std::function<absl::Status(const Bytes& data)> on_data;
  /// WRITE, HOLD: the store has it. May be empty.
  std::function<void()> on_stored;
};

struct StoreTransferOptions {
  /// No answer from one store for so long, connected or not, ends the transfer.
  Nanoseconds give_up_after = std::chrono::seconds(30);
  /// Likewise, and what others have too is asked of them.
  Nanoseconds ask_second_after = std::chrono::seconds(5);
  /// Between two attempts to connect to one store.
  Nanoseconds reconnect_pause = Milliseconds(200);
  /// Requests that one store has not answered; more wait here.
  std::size_t window = 4;
  /// More requests come with add(): only an error ends the transfer.
  bool stays_open = false;
};
/// For WRITE: the disk may have all that others give it at the same moment to write before.
inline constexpr StoreTransferOptions kWriting{.give_up_after = std::chrono::minutes(2)};

/// One batch. Destroying it ends it without a word.
class StoreTransfer {
 public:
  using Done = std::function<void(const absl::Status&)>;

  /// `transport` (for kStoreMethod) must outlive it.
  StoreTransfer(Transport* transport, StoreTransferOptions options = {});
  ~StoreTransfer();
  StoreTransfer(const StoreTransfer&) = delete;
  StoreTransfer& operator=(const StoreTransfer&) = delete;

  /// Once. `done` is called once, never from within this call, and may destroy the transfer. Its
  /// error names the store: UNAVAILABLE when it did not answer, else what it answered.
  void start(std::vector<StoreRequest> requests, Done done);
  /// One more, over the same streams; after start, where options.stays_open. Nothing once it has
  /// ended. Whoever calls bounds how many are unanswered.
  void add(StoreRequest request);

  /// Requests that had to be asked of their second address, and why the first was.
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
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
