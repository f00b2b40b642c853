#include "common/checkpoint/store_client.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/unreachable.h"
#include "common/memory/aligned_buffer.h"

namespace poseidon {
namespace {

/// Longest reason taken from a store's answer.
constexpr std::size_t kMaxReasonBytes = 1024;

std::string text_of(const Bytes& bytes) {
  std::string text;
  for (const auto& piece : bytes.pieces) {
    if (text.size() >= kMaxReasonBytes) break;
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  if (text.size() > kMaxReasonBytes) text.resize(kMaxReasonBytes);
  return text;
}

}  // namespace

/// One store's requests and the stream to it.
class StoreTransfer::Connection final : public StreamHandler {
 public:
  Connection(StoreTransfer* transfer, std::string address)
      : transfer_(transfer), address_(std::move(address)) {}

  ReadNext on_message(Bytes message) override {
    transfer_->on_message(*this, message);  // may destroy this
    return ReadNext::kContinue;
  }
  void on_written() override {
    writing_ = false;
    transfer_->pump(*this);
  }
  void on_closed(const absl::Status& status) override { transfer_->on_closed(*this, status); }

 private:
  friend class StoreTransfer;
  StoreTransfer* const transfer_;
  const std::string address_;
  std::deque<StoreRequest> requests_;  ///< unanswered, in order; the first `sent_` are on their way
  std::size_t sent_ = 0;
  std::uint64_t first_ = 1;  ///< number of requests_[0]
  bool writing_ = false;
  Nanoseconds heard_{0};  ///< of the last answer, or the beginning
  std::string last_cut_;  ///< why its stream ended
  std::unique_ptr<Stream> stream_;
};

StoreTransfer::StoreTransfer(Transport* transport, StoreTransferOptions options)
    : transport_(transport), options_(options) {}

StoreTransfer::~StoreTransfer() { *alive_ = false; }

void StoreTransfer::start(std::vector<StoreRequest> requests, Done done) {
  done_ = std::move(done);
  unanswered_ = requests.size();
  for (StoreRequest& request : requests) {
    Connection& connection = connection_to(request.address);
    connection.requests_.push_back(std::move(request));
  }
  transport_->post([this, alive = alive_] {
    if (!*alive) return;
    if (unanswered_ == 0 && !options_.stays_open) {
      finish(absl::OkStatus());
      return;
    }
    for (auto& connection : connections_) connect(*connection);
    watch();
  });
}

void StoreTransfer::add(StoreRequest request) {
  if (ended_) return;
  ++unanswered_;
  enqueue(std::move(request));
}

/// To its address, now.
void StoreTransfer::enqueue(StoreRequest request) {
  Connection& connection = connection_to(request.address);
  if (connection.requests_.empty()) connection.heard_ = transport_->now();
  connection.requests_.push_back(std::move(request));
  if (connection.stream_ == nullptr) {
    connect(connection);
  } else {
    pump(connection);
  }
}

StoreTransfer::Connection& StoreTransfer::connection_to(const std::string& address) {
  const auto found = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& one) { return one->address_ == address; });
  if (found != connections_.end()) return **found;
  connections_.push_back(std::make_unique<Connection>(this, address));
  connections_.back()->heard_ = transport_->now();
  return *connections_.back();
}

bool StoreTransfer::may_ask_second(const Connection& connection, const absl::Status& why) const {
  return !connection.requests_.front().second_address.empty() &&
         (absl::IsNotFound(why) || absl::IsDataLoss(why));
}

void StoreTransfer::ask_second(StoreRequest request, const std::string& why) {
  if (asked_second_++ == 0) first_reason_ = why;
  request.address = std::exchange(request.second_address, "");
  enqueue(std::move(request));
}

/// What others have is asked of them; the rest stays.
void StoreTransfer::give_up(Connection& connection, const std::string& why) {
  std::deque<StoreRequest> all = std::exchange(connection.requests_, {});
  connection.stream_.reset();
  connection.first_ += all.size();
  connection.sent_ = 0;
  for (StoreRequest& request : all) {
    if (request.second_address.empty()) {
      connection.requests_.push_back(std::move(request));
    } else {
      ask_second(std::move(request), why);
    }
  }
  if (!connection.requests_.empty()) connect(connection);
}

void StoreTransfer::connect(Connection& connection) {
  connection.writing_ = false;
  connection.sent_ = 0;  // whatever was unanswered is asked again: both operations are idempotent
  connection.stream_ = transport_->connect(connection.address_, &connection);
  pump(connection);
}

void StoreTransfer::pump(Connection& connection) {
  if (ended_ || connection.stream_ == nullptr || connection.writing_) return;
  if (connection.sent_ >= std::min(connection.requests_.size(), options_.window)) return;
  const StoreRequest& request = connection.requests_[connection.sent_];
  StoreHeader header = request.header;
  header.request = connection.first_ + connection.sent_;
  ++connection.sent_;
  connection.writing_ = true;
  absl::Span<const std::byte> payload = request.payload;
  std::shared_ptr<const void> owner = request.owner;
  if (request.make_payload) {
    const std::shared_ptr<const std::vector<float>> made = request.make_payload();
    payload = as_payload(*made);
    owner = made;
  }
  connection.stream_->write({.prefix = encode_prefix(header, payload.size()),
                             .payload = payload,
                             .payload_owner = std::move(owner)});
}

void StoreTransfer::on_message(Connection& connection, const Bytes& message) {
  if (ended_) return;
  const auto fail = [&](absl::StatusCode code, const std::string& what) {
    finish(absl::Status(code,
                        explained(absl::StrCat("the store at ", connection.address_, ": ", what))));
  };
  const auto answered = [&] {
    connection.heard_ = transport_->now();
    connection.requests_.pop_front();
    --connection.sent_;
    ++connection.first_;
  };
  const auto ask_elsewhere = [&](const absl::Status& why) {
    if (!may_ask_second(connection, why)) return false;
    StoreRequest again = std::move(connection.requests_.front());
    answered();
    ask_second(std::move(again),
               absl::StrCat("the store at ", connection.address_, ": ", why.message()));
    pump(connection);
    return true;
  };
  // A broken stream says nothing about the checkpoint: all is asked again on a new one.
  const auto break_stream = [&](const std::string& why) {
    on_closed(connection, absl::UnavailableError(why));
  };
  const absl::StatusOr<DecodedStore> decoded = decode_store(message);
  if (!decoded.ok()) {
    break_stream(std::string(decoded.status().message()));
    return;
  }
  const StoreHeader& header = decoded->header;
  if (header.request < connection.first_) return;  // asked twice after a cut, answered twice
  if (connection.sent_ == 0 || header.request != connection.first_) {
    break_stream(
        absl::StrCat("an answer to request ", header.request, ", expected ", connection.first_));
    return;
  }
  StoreRequest& request = connection.requests_.front();
  const bool is_read = request.header.operation == StoreOperation::kRead ||
                       request.header.operation == StoreOperation::kReadHeld;
  const StoreOperation expected = is_read ? StoreOperation::kData : StoreOperation::kStored;
  if (header.operation == StoreOperation::kError) {
    const auto code = static_cast<absl::StatusCode>(header.error_code);
    const std::string text = text_of(decoded->payload);
    if (ask_elsewhere(absl::Status(code, text))) return;
    if (request.header.operation == StoreOperation::kHold &&
        code == absl::StatusCode::kFailedPrecondition) {
      // The server works in another epoch, or was restarted and works in none: nothing is wrong
      // with the job, and a new epoch may work.
      fail(absl::StatusCode::kUnavailable, text);
      return;
    }
    fail(code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code, text);
    return;
  }
  if (header.operation != expected) {
    break_stream("an answer of the wrong kind");
    return;
  }
  if (is_read) {
    if (const absl::Status taken = request.on_data(decoded->payload); !taken.ok()) {
      if (ask_elsewhere(taken)) return;
      fail(taken.code(), std::string(taken.message()));
      return;
    }
  }
  const std::function<void()> stored = std::move(request.on_stored);
  answered();
  if (stored) stored();
  if (--unanswered_ == 0 && !options_.stays_open) {
    finish(absl::OkStatus());
    return;
  }
  pump(connection);
}

void StoreTransfer::on_closed(Connection& connection, const absl::Status& status) {
  connection.stream_.reset();
  if (ended_) return;
  if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsAborted(status)) {
    const std::string why =
        absl::StrCat("the store at ", connection.address_, " refused: ", status.message());
    give_up(connection, why);
    if (!connection.requests_.empty()) finish(absl::Status(status.code(), explained(why)));
    return;
  }
  connection.last_cut_ = std::string(status.message());
  if (connection.requests_.empty()) return;
  transport_->post_after(options_.reconnect_pause, [this, alive = alive_, &connection] {
    if (*alive && !ended_ && connection.stream_ == nullptr) connect(connection);
  });
}

void StoreTransfer::watch() {
  if (ended_) return;
  std::vector<Connection*> known;  // more may come while we look
  for (const auto& connection : connections_) known.push_back(connection.get());
  for (Connection* const one : known) {
    Connection& connection = *one;
    const Nanoseconds silent = transport_->now() - connection.heard_;
    if (connection.requests_.empty() || silent < options_.ask_second_after) continue;
    const std::string why = absl::StrCat(
        "the store at ", connection.address_, " did not answer for ",
        std::chrono::duration_cast<Milliseconds>(silent).count(), " ms",
        connection.last_cut_.empty() ? "" : absl::StrCat(" (", connection.last_cut_, ")"),
        ": is its poseidon-server running, does the network carry packets of every "
        "size to it, and does its disk work?");
    const bool elsewhere =
        std::any_of(connection.requests_.begin(), connection.requests_.end(),
                    [](const StoreRequest& request) { return !request.second_address.empty(); });
    if (elsewhere) give_up(connection, why);
    if (connection.requests_.empty() || silent < options_.give_up_after) continue;
    finish(unreachable_error(connection.address_, explained(why)));
    return;
  }
  const Nanoseconds patience = std::min(options_.give_up_after, options_.ask_second_after);
  transport_->post_after(patience / 10, [this, alive = alive_] {
    if (*alive) watch();
  });
}

/// With why second addresses were asked at all.
std::string StoreTransfer::explained(const std::string& what) const {
  return asked_second_ == 0 ? what : absl::StrCat(what, "; and before: ", first_reason_);
}

void StoreTransfer::finish(const absl::Status& status) {
  if (std::exchange(ended_, true)) return;
  // Not from within a stream's event: the callback may destroy us.
  transport_->post([this, alive = alive_, status] {
    if (!*alive) return;
    for (auto& connection : connections_) connection->stream_.reset();
    const Done done = std::move(done_);
    done(status);
  });
}

}  // namespace poseidon
