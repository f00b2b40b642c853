#pragma once

// gRPC calls as streams: the asynchronous state machines that only grpc_transport.cc uses.
// Everything runs on the transport's loop.
//
// Called by: grpc_transport.cc, which opens and accepts calls and passes on the results of the
// completion queue. Calls: gRPC, with at most one read and one write of a call at a time; the
// stream's handler, with the results.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/grpc/grpc_status.h"
#include "common/security/security.h"
#include "common/transport/transport.h"

namespace poseidon::grpc_internal {

/// The tag that the completion queue returns. Loop only.
class Tag {
 public:
  virtual void complete(bool ok) = 0;

 protected:
  ~Tag() = default;
};

/// The codes that gRPC itself uses for a broken or reset connection become UNAVAILABLE; the other
/// side's own status is unchanged.
inline absl::Status from_grpc(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
      return absl::UnavailableError(absl::StrCat("the stream was reset: ", status.error_message()));
    default:
      break;
  }
  return to_absl(status);
}

/// HOST:PORT of what gRPC calls "ipv4:10.0.0.3:4711" or "ipv6:%5Bfe80::1%5D:4711".
inline std::string numeric_address(const std::string& uri) {
  return absl::StrReplaceAll(uri.substr(uri.find(':') + 1),
                             {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

/// The prefix is copied into a slice of its own; the payload is referred to, and its owner is held
/// until gRPC no longer needs it.
inline grpc::ByteBuffer to_byte_buffer(OutgoingMessage message) {
  std::array<grpc::Slice, 2> slices{
      grpc::Slice(message.prefix.view().data(), message.prefix.size()), grpc::Slice()};
  if (message.payload.empty()) return {slices.data(), 1};
  auto* owner = new std::shared_ptr<const void>(std::move(message.payload_owner));
  slices[1] = grpc::Slice(
      const_cast<std::byte*>(message.payload.data()), message.payload.size(),
      [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); }, owner);
  return {slices.data(), 2};
}

inline Bytes to_bytes(const grpc::ByteBuffer& buffer) {
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  Bytes bytes;
  if (!buffer.Dump(slices.get()).ok()) return bytes;  // compressed garbage: refused as malformed
  bytes.pieces.reserve(slices->size());
  for (const grpc::Slice& slice : *slices) {
    bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  bytes.owner = std::move(slices);
  return bytes;
}

class Call;

/// The loop's state of all calls. Loop only.
struct CallBook {
  std::set<Call*> live;
  std::int64_t operations = 0;  ///< that gRPC holds, over all calls
};

/// One gRPC call, the client's or the server's end. Deletes itself when its handle is gone and gRPC
/// holds no operation of it any more. Loop only.
///
/// Order of operations: start -> (reads, one at a time | writes, one at a time) -> finish. The end
/// is always learnt from a read that fails or from the call's completion, never from a write.
class Call {
 public:
  explicit Call(CallBook* book) : book_(book) { book_->live.insert(this); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void attach(StreamHandler* handler) { handler_ = handler; }

  void write(OutgoingMessage message) {
    POSEIDON_CHECK(!write_pending_ && (!closing_ || peer_gone_),
                   "one write at a time, and none after close");
    write_pending_ = true;
    if (peer_gone_) return;  // on_closed reports it to the user
    outgoing_ = to_byte_buffer(std::move(message));
    if (started_ && !ended_) issue_write();
  }

  void resume_reads() {
    if (!paused_) return;
    paused_ = false;
    if (!ended_) issue_read();
  }

  void close(const absl::Status& status) {
    if (closing_ || ended_) return;
    closing_ = true;
    close_status_ = status;
    if (started_ && !write_pending_) begin_close();
  }

  /// The handle is gone: no event from now on.
  void release() {
    handle_alive_ = false;
    silence();
    delete_if_done();
  }

  /// No more events, and the call ends soon.
  void silence() {
    handler_ = nullptr;
    if (!closing_) cancel();
    resume_reads();  // so that a paused call sees its end
  }

  void abort() {
    handler_ = nullptr;
    cancel();
    resume_reads();
  }

  virtual std::string peer() const = 0;
  virtual std::string reached() const { return peer(); }

 protected:
  virtual ~Call() { book_->live.erase(this); }

  /// Ties the completion of one kind of operation to a member function.
  class Operation final : public Tag {
   public:
    using Done = void (Call::*)(bool ok);
    Operation(Call* call, Done done) : call_(call), done_(done) {}
    void* begin() {
      ++call_->operations_;
      ++call_->book_->operations;
      return static_cast<Tag*>(this);
    }
    void complete(bool ok) override {
      Call* call = call_;
      (call->*done_)(ok);
      --call->book_->operations;
      --call->operations_;  // only now: the handler may have released the call meanwhile
      call->delete_if_done();
    }

   private:
    Call* const call_;
    const Done done_;
  };

  virtual void issue_read() = 0;
  virtual void issue_write() = 0;
  virtual void begin_close() = 0;  ///< all writes are done
  virtual void on_read_end() = 0;  ///< no message will come any more
  virtual void cancel() = 0;

  void on_started() {
    started_ = true;
    issue_read();
    if (write_pending_) {
      issue_write();
    } else if (closing_) {
      begin_close();
    }
  }

  void on_read(bool ok) {
    if (!ok) {
      on_read_end();
      return;
    }
    has_received_ = true;
    if (handler_ != nullptr && !closing_) {
      const Bytes bytes = to_bytes(incoming_);
      paused_ = handler_->on_message(bytes) == ReadNext::kPause && handler_ != nullptr;
    }
    incoming_.Clear();
    if (!paused_ && !ended_) issue_read();
  }

  void on_write(bool ok) {
    write_pending_ = false;
    outgoing_.Clear();
    if (!ok || ended_) return;
    if (closing_) {
      begin_close();
    } else if (handler_ != nullptr) {
      handler_->on_written();
    }
  }

  void end(const absl::Status& status) {
    if (std::exchange(ended_, true)) return;
    if (StreamHandler* handler = std::exchange(handler_, nullptr)) handler->on_closed(status);
  }

  void delete_if_done() {
    if (operations_ == 0 && !handle_alive_) delete this;
  }

  CallBook* const book_;
  grpc::ByteBuffer incoming_, outgoing_;
  absl::Status close_status_;
  bool closing_ = false;  ///< close was called
  /// The other end reads no more, and closing_ is our answer to that, not the user's wish.
  bool peer_gone_ = false;
  bool ended_ = false;         ///< on_closed was delivered, or the user is gone
  bool has_received_ = false;  ///< a message
  Operation read_{this, &Call::on_read};
  Operation write_{this, &Call::on_write};

 private:
  StreamHandler* handler_ = nullptr;
  int operations_ = 0;  ///< that gRPC holds
  bool handle_alive_ = true;
  bool started_ = false, write_pending_ = false, paused_ = false;
};

class ClientCall final : public Call {
 public:
  ClientCall(CallBook* book, std::shared_ptr<grpc::Channel> channel, const std::string& method,
             std::string address, std::shared_ptr<const Security> security,
             grpc::CompletionQueue* queue)
      : Call(book),
        address_(std::move(address)),
        security_(std::move(security)),
        stub_(std::move(channel)) {
    security_->sign(context_);
    stream_ = stub_.PrepareCall(&context_, method, queue);
    stream_->StartCall(start_.begin());
  }

  std::string peer() const override { return address_; }
  std::string reached() const override { return numeric_address(context_.peer()); }

 private:
  void issue_read() override { stream_->Read(&incoming_, read_.begin()); }
  void issue_write() override { stream_->Write(outgoing_, write_.begin()); }
  void cancel() override { context_.TryCancel(); }
  void begin_close() override {
    if (close_status_.ok()) {
      stream_->WritesDone(half_close_.begin());
    } else {
      cancel();  // a client has no other way to end the call
    }
  }
  void on_start_done(bool ok) {
    if (ok) {
      on_started();
    } else {
      on_read_end();
    }
  }
  void on_half_close_done(bool /*ok*/) {}
  void on_read_end() override { stream_->Finish(&status_, finish_.begin()); }
  void on_finish_done(bool /*ok*/) {
    // A call that breaks after it has worked does not have a problem with certificates.
    end(has_received_ ? from_grpc(status_) : security_->explain(from_grpc(status_)));
  }

  template <typename Member>
  static Operation::Done as_done(Member member) {
    return static_cast<Operation::Done>(member);
  }

  const std::string address_;
  const std::shared_ptr<const Security> security_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::Status status_;
  Operation start_{this, as_done(&ClientCall::on_start_done)};
  Operation half_close_{this, as_done(&ClientCall::on_half_close_done)};
  Operation finish_{this, as_done(&ClientCall::on_finish_done)};
};

/// The handle that users hold.
class CallStream final : public Stream {
 public:
  explicit CallStream(Call* call) : call_(call) {}
  ~CallStream() override { call_->release(); }
  void write(OutgoingMessage message) override { call_->write(std::move(message)); }
  void resume_reads() override { call_->resume_reads(); }
  void close(const absl::Status& status) override { call_->close(status); }
  std::string peer() const override { return call_->peer(); }
  std::string reached() const override { return call_->reached(); }

 private:
  Call* const call_;
};

class ServerCall final : public Call {
 public:
  struct Listener {
    grpc::AsyncGenericService service;
    std::shared_ptr<Security> security;
    grpc::ServerCompletionQueue* queue = nullptr;
    std::string address;                       ///< in force, port filled in
    std::map<std::string, Acceptor*> methods;  ///< by name
    bool stopping = false;
    absl::Status has_no(const std::string& method) const {
      std::string served;
      for (const auto& [each, acceptor] : methods) {
        absl::StrAppend(&served, served.empty() ? "" : ", ", each);
      }
      return absl::UnimplementedError(
          absl::StrCat("no method ", method, ", this port serves ", served));
    }
  };

  /// Waits for the next call of a peer.
  ServerCall(CallBook* book, Listener* listener)
      : Call(book), listener_(listener), stream_(&context_) {
    context_.AsyncNotifyWhenDone(static_cast<Tag*>(&done_));
    listener_->service.RequestCall(&context_, &stream_, listener_->queue, listener_->queue,
                                   request_.begin());
  }

  std::string peer() const override { return context_.peer(); }

 private:
  void on_request_done(bool ok) {
    if (!ok) {  // the listener shuts down before a call came; `done_` will not come either
      ended_ = finished_ = true;
      const CallStream unused(this);  // releases the handle, which was never passed on
      return;
    }
    requested_ = true;
    (void)done_.begin();
    auto handle = std::make_unique<CallStream>(this);
    if (listener_->stopping) {
      turn_away(grpc::StatusCode::UNAVAILABLE, "this process is stopping");
      return;
    }
    new ServerCall(book_, listener_);  // NOLINT: deletes itself, see Call
    if (const absl::Status admitted = listener_->security->admit(context_, context_.method());
        !admitted.ok()) {
      const grpc::Status why = to_grpc(admitted);
      turn_away(why.error_code(), why.error_message());
      return;
    }
    const auto served = listener_->methods.find(context_.method());
    if (served == listener_->methods.end()) {
      const grpc::Status why = to_grpc(listener_->has_no(context_.method()));
      turn_away(why.error_code(), why.error_message());
      return;
    }
    attach(served->second->on_accept(std::move(handle)));
    on_started();
  }

  void issue_read() override { stream_.Read(&incoming_, read_.begin()); }
  void issue_write() override { stream_.Write(outgoing_, write_.begin()); }
  void cancel() override {
    if (requested_ && !finished_) context_.TryCancel();
  }
  void begin_close() override { finish(to_grpc(close_status_)); }
  void on_read_end() override {
    if (closing_ || ended_) return;
    peer_gone_ = true;
    close(absl::OkStatus());  // the client has ended its side; harmless if it was cut
  }
  void finish(const grpc::Status& status) {
    if (std::exchange(finished_, true)) return;
    stream_.Finish(status, finish_.begin());
  }
  void turn_away(grpc::StatusCode code, const std::string& why) {
    closing_ = true;
    finish(grpc::Status(code, why));
  }
  void on_finish_done(bool /*ok*/) {}
  void on_call_done(bool /*ok*/) {
    end(context_.IsCancelled() ? absl::UnavailableError("the connection was cut")
                               : absl::OkStatus());
  }

  template <typename Member>
  static Operation::Done as_done(Member member) {
    return static_cast<Operation::Done>(member);
  }

  Listener* const listener_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  bool requested_ = false;  ///< a peer has called
  bool finished_ = false;
  Operation request_{this, as_done(&ServerCall::on_request_done)};
  Operation done_{this, as_done(&ServerCall::on_call_done)};
  Operation finish_{this, as_done(&ServerCall::on_finish_done)};
};

}  // namespace poseidon::grpc_internal
