#include "common/grpc/grpc_transport.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>

#include <chrono>
#include <functional>
#include <queue>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/grpc/grpc_call.h"
#include "common/grpc/tls_sockets.h"
#include "common/security/connection_door.h"
#include "common/security/roles.h"
#include "common/threads/mutex.h"
#include "common/wire/wire.h"

namespace poseidon {
namespace {

using grpc_internal::Call;
using grpc_internal::CallBook;
using grpc_internal::CallStream;
using grpc_internal::ClientCall;
using grpc_internal::ServerCall;
using grpc_internal::Tag;

constexpr int kTcpReadChunkBytes = 256 << 10;
/// Of one attempt: a machine that is switched off answers none.
constexpr Milliseconds kConnectTimeout{5000};
/// Interval of checks of channels that still connect.
constexpr Milliseconds kConnectingPause{1000};

}  // namespace

class GrpcTransport::Impl {
 public:
  explicit Impl(GrpcTransportOptions options) : options_(std::move(options)) {
    if (options_.max_message_bytes == 0) {
      options_.max_message_bytes = static_cast<int>(kMaxMessageBytes);
    }
    if (options_.security->has_tls()) {
      sockets_ = std::make_unique<TlsSockets>(
          options_.security,
          TlsSocketOptions{
              .max_message_bytes = static_cast<std::size_t>(options_.max_message_bytes),
              .handshake = options_.port.handshake,
              .connect = kConnectTimeout},
          [this](const MethodCaller& caller) { return admit(caller); });
    }
  }

  absl::StatusOr<std::string> listen(const std::string& method, const std::string& address,
                                     Acceptor* acceptor) {
    if (server_ != nullptr) return share_port(method, address, acceptor);
    POSEIDON_CHECK(queue_ == nullptr, "listen before start");
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("address \"", address, "\": HOST:PORT wanted"));
    }
    grpc::ServerBuilder builder;
    POSEIDON_ASSIGN_OR_RETURN(port_, options_.security->open_port(builder, address, options_.port));
    builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kTcpReadChunkBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    add_keepalive(std::nullopt, [&builder](const char* name, int value) {
      builder.AddChannelArgument(name, value);
    });
    builder.SetMaxReceiveMessageSize(options_.max_message_bytes);
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterAsyncGenericService(&listener_.service);
    auto queue = builder.AddCompletionQueue();
    listener_.security = options_.security;
    listener_.queue = queue.get();
    listener_.methods[method] = acceptor;
    queue_ = std::move(queue);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::InternalError(absl::StrCat("gRPC does not serve on ", address));
    }
    port_->start(sockets_ == nullptr ? std::function<void(int)>()
                                     : [this](int socket) { take_stream(socket); });
    listener_.address = absl::StrCat(address.substr(0, colon), ":", port_->port());
    return listener_.address;
  }

  void start() {
    {
      const MutexLock lock(mutex_);
      if (queue_ == nullptr) queue_ = std::make_unique<grpc::CompletionQueue>();
      queue_open_ = true;
    }
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    if (!thread_.joinable()) {
      shut_down_unstarted();
      return;
    }
    post([this] { stopping_ = true; });
    thread_.join();
  }

  std::unique_ptr<Stream> connect(const std::string& method, const std::string& address,
                                  std::optional<Milliseconds> keepalive, StreamHandler* handler) {
    if (sockets_ != nullptr && rule_of(method).moves_tensors) {
      return sockets_->connect(method, address, keepalive_of(keepalive), handler);
    }
    auto channel = grpc::CreateCustomChannel(
        address, options_.security->channel_credentials(method), channel_arguments(keepalive));
    hold_while_connecting(channel);
    auto* call = new ClientCall(&book_, std::move(channel), method, address, options_.security,
                                queue_.get());
    call->attach(handler);
    return std::make_unique<CallStream>(call);
  }

  Keepalive keepalive_of(std::optional<Milliseconds> both) const {
    return {.interval = both.value_or(options_.keepalive_interval),
            .timeout = both.value_or(options_.keepalive_timeout)};
  }

  void post(std::function<void()> function) {
    {
      const MutexLock lock(mutex_);
      if (!stopped_) {
        posted_.push_back(std::move(function));
        if (queue_open_ && !std::exchange(woken_, true)) wake();
        return;
      }
    }
    function();  // the loop's thread has ended: this thread is the only one
  }

  void post_after(Nanoseconds delay, std::function<void()> function) {
    timers_.push({now() + delay, timer_sequence_++, std::move(function)});
  }

  Nanoseconds now() const { return clock_.now(); }

 private:
  /// gRPC (1.51) leaks the socket of a channel that is destroyed while it connects.
  void hold_while_connecting(const std::shared_ptr<grpc::Channel>& channel) {
    if (connecting_.empty()) post_after(kConnectingPause, [this] { let_go_of_connected(); });
    connecting_.push_back(channel);
  }
  void let_go_of_connected() {
    std::erase_if(connecting_, [](const std::shared_ptr<grpc::Channel>& channel) {
      return channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_CONNECTING;
    });
    if (!connecting_.empty()) post_after(kConnectingPause, [this] { let_go_of_connected(); });
  }

  /// On the door's thread.
  void take_stream(int socket) {
    const auto shared = std::make_shared<Descriptor>(socket);
    post([this, shared] {
      if (!stopping_) sockets_->accept(std::move(*shared), keepalive_of(std::nullopt));
    });
  }

  /// Who serves the method of a stream that gRPC does not carry.
  absl::StatusOr<Acceptor*> admit(const MethodCaller& caller) {
    if (listener_.stopping) return absl::UnavailableError("this process is stopping");
    POSEIDON_RETURN_IF_ERROR(options_.security->admit(caller));
    const auto served = listener_.methods.find(caller.method);
    if (served == listener_.methods.end() || !rule_of(caller.method).moves_tensors) {
      return listener_.has_no(caller.method);
    }
    return served->second;
  }

  struct Timer {
    Nanoseconds due;
    std::uint64_t sequence;
    std::function<void()> function;
    bool operator<(const Timer& other) const {  // the queue's top is the earliest
      return std::tie(other.due, other.sequence) < std::tie(due, sequence);
    }
  };

  /// A result of gRPC's queue.
  struct Completed {
    Tag* tag = nullptr;
    bool ok = false;
  };

  /// Completes when something was posted.
  class Wake final : public Tag {
   public:
    explicit Wake(Impl* impl) : impl_(impl) {}
    void complete(bool /*ok*/) override { impl_->run_posted(/*alarm_fired=*/true); }

   private:
    Impl* const impl_;
  };

  grpc::ChannelArguments channel_arguments(std::optional<Milliseconds> keepalive) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // no shared back-off: ours decides
    // In spite of its name this is how long one attempt to connect may take.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(kConnectTimeout.count()));
    arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, kTcpReadChunkBytes);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // cluster traffic never goes through a proxy
    arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);  // as in Security::open_port
    arguments.SetMaxReceiveMessageSize(options_.max_message_bytes);
    arguments.SetMaxSendMessageSize(-1);
    add_keepalive(keepalive,
                  [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
    return arguments;
  }

  absl::StatusOr<std::string> share_port(const std::string& method, const std::string& address,
                                         Acceptor* acceptor) {
    POSEIDON_CHECK(!thread_.joinable(), "listen before start");
    if (address != listener_.address) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot listen on ", address, " too: this process listens on ", listener_.address));
    }
    const bool is_new = listener_.methods.emplace(method, acceptor).second;
    POSEIDON_CHECK(is_new, "one acceptor for each method");
    return listener_.address;
  }

  template <typename Set>
  void add_keepalive(std::optional<Milliseconds> both, const Set& set) const {
    const Keepalive keepalive = keepalive_of(both);
    set(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(keepalive.interval.count()));
    set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(keepalive.timeout.count()));
    set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }

  void wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (sockets_ != nullptr) {
      sockets_->wake();
    } else {
      alarm_.Set(queue_.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), static_cast<Tag*>(&wake_));
    }
  }

  void run() {
    run_posted(/*alarm_fired=*/false);  // tasks posted before the queue took alarms
    if (sockets_ != nullptr) waiter_ = std::thread([this] { wait_for_grpc(); });
    if (server_ != nullptr) new ServerCall(&book_, &listener_);  // NOLINT: deletes itself
    while (!stopping_) {
      run_timers();
      poll(timers_.empty() ? Milliseconds(1000) : timers_.top().due - now());
    }
    shut_down();
  }

  /// On the waiter's thread, where there are sockets for the loop to wait for: gRPC's queue knows
  /// of none but its own. What gRPC has then is little, as tensors go over the others.
  void wait_for_grpc() {
    void* tag = nullptr;
    bool ok = false;
    // Without a deadline: this thread's whole life is to wait, until the queue ends.
    while (queue_->Next(&tag, &ok)) {
      const MutexLock lock(mutex_);
      completed_.push_back({static_cast<Tag*>(tag), ok});
      if (!std::exchange(woken_, true)) wake();
    }
  }

  void poll(Nanoseconds patience) {
    if (sockets_ != nullptr) {
      sockets_->poll(patience);
      run_woken();
      return;
    }
    void* tag = nullptr;
    bool ok = false;
    const gpr_timespec deadline = gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC),
        gpr_time_from_nanos(std::max<std::int64_t>(0, patience.count()), GPR_TIMESPAN));
    if (queue_->AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT) {
      static_cast<Tag*>(tag)->complete(ok);
    }
  }

  void run_timers() {
    while (!timers_.empty() && timers_.top().due <= now()) {
      const std::function<void()> function = timers_.top().function;
      timers_.pop();
      function();
    }
  }

  /// All that others have left for the loop since it was woken.
  void run_woken() {
    std::vector<Completed> completed;
    std::vector<std::function<void()>> posted;
    {
      const MutexLock lock(mutex_);
      woken_ = false;
      completed.swap(completed_);
      posted.swap(posted_);
    }
    for (const Completed& each : completed) each.tag->complete(each.ok);
    for (auto& function : posted) function();
  }

  /// An alarm may be set again only once it has fired, so only that clears `woken_`.
  void run_posted(bool alarm_fired) {
    std::vector<std::function<void()>> batch;
    {
      const MutexLock lock(mutex_);
      if (alarm_fired) woken_ = false;
      batch.swap(posted_);
    }
    for (auto& function : batch) function();
  }

  /// No events are delivered any more. gRPC returns every operation that it holds, then the queue
  /// ends.
  void shut_down() {
    listener_.stopping = true;
    port_.reset();
    if (sockets_ != nullptr) sockets_->stop();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    for (Call* call : std::vector<Call*>(book_.live.begin(), book_.live.end())) call->abort();
    // An ending call issues its last operation, so the queue may close only after all of them.
    while (book_.operations > 0) poll(Milliseconds(100));
    {
      const MutexLock lock(mutex_);
      queue_open_ = false;
    }
    queue_->Shutdown();
    if (waiter_.joinable()) {
      waiter_.join();
      run_woken();
    }
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) static_cast<Tag*>(tag)->complete(ok);
    while (run_last_posted()) {
    }
  }

  /// False when nothing was left: from then on `post` runs functions itself.
  bool run_last_posted() {
    std::vector<std::function<void()>> batch;
    {
      const MutexLock lock(mutex_);
      stopped_ = posted_.empty();
      batch.swap(posted_);
    }
    for (auto& function : batch) function();
    return !batch.empty();
  }

  void shut_down_unstarted() {
    if (queue_ == nullptr) return;
    port_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    queue_->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) {
    }
    server_.reset();
    queue_.reset();
  }

  GrpcTransportOptions options_;
  const SystemClock clock_;
  std::thread thread_;
  std::thread waiter_;  ///< with TLS
  std::unique_ptr<grpc::CompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ServerPort> port_;  ///< goes before the server
  ServerCall::Listener listener_;
  std::unique_ptr<TlsSockets> sockets_;  ///< null without TLS

  // Loop only.
  CallBook book_;
  std::vector<std::shared_ptr<grpc::Channel>> connecting_;  ///< or about to; some may be done
  std::priority_queue<Timer> timers_;
  std::uint64_t timer_sequence_ = 0;
  bool stopping_ = false;

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool queue_open_ ABSL_GUARDED_BY(mutex_) = false;  ///< the queue takes alarms
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  ///< an alarm, or the sockets' wake, is on its way
  std::vector<Completed> completed_ ABSL_GUARDED_BY(mutex_);  ///< by the waiter
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  Wake wake_{this};
};

/// Another method's face of the same loop.
class GrpcTransport::View final : public Transport {
 public:
  View(Impl* impl, std::string_view method, std::optional<Milliseconds> keepalive)
      : impl_(impl), method_(method), keepalive_(keepalive) {}
  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override {
    return impl_->connect(method_, address, keepalive_, handler);
  }
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override {
    return impl_->listen(method_, address, acceptor);
  }
  void post(std::function<void()> function) override { impl_->post(std::move(function)); }
  void post_after(Nanoseconds delay, std::function<void()> function) override {
    impl_->post_after(delay, std::move(function));
  }
  Nanoseconds now() const override { return impl_->now(); }

 private:
  Impl* const impl_;
  const std::string method_;
  const std::optional<Milliseconds> keepalive_;
};

GrpcTransport::GrpcTransport(GrpcTransportOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))),
      exchange_(&add_view(kExchangeMethod, std::nullopt)) {}
GrpcTransport::~GrpcTransport() { stop(); }

Transport& GrpcTransport::add_method(std::string_view method,
                                     std::optional<Milliseconds> keepalive) {
  return add_view(method, keepalive);
}

Transport& GrpcTransport::add_view(std::string_view method, std::optional<Milliseconds> keepalive) {
  return *views_.emplace_back(std::make_unique<View>(impl_.get(), method, keepalive));
}

absl::StatusOr<std::string> GrpcTransport::listen(const std::string& address, Acceptor* acceptor) {
  return exchange_->listen(address, acceptor);
}
void GrpcTransport::start() { impl_->start(); }
void GrpcTransport::stop() { impl_->stop(); }
std::unique_ptr<Stream> GrpcTransport::connect(const std::string& address, StreamHandler* handler) {
  return exchange_->connect(address, handler);
}
void GrpcTransport::post(std::function<void()> function) { impl_->post(std::move(function)); }
void GrpcTransport::post_after(Nanoseconds delay, std::function<void()> function) {
  impl_->post_after(delay, std::move(function));
}
Nanoseconds GrpcTransport::now() const { return impl_->now(); }

void tune_process() {
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_ARENA_MAX, 1);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace poseidon
