#include "common/grpc_transport.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>

#include <chrono>
#include <mutex>
#include <queue>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/grpc_call.h"
#include "common/status_macros.h"
#include "common/wire.h"

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
constexpr int kConnectTimeoutMs = 5000;

}  // namespace

class GrpcTransport::Impl {
 public:
  explicit Impl(GrpcTransportOptions options) : options_(std::move(options)) {
    if (options_.max_message_bytes == 0) {
      options_.max_message_bytes = static_cast<int>(kMaxMessageBytes);
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
    listener_.acceptors[method] = acceptor;
    queue_ = std::move(queue);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::InternalError(absl::StrCat("gRPC does not serve on ", address));
    }
    port_->start();
    listener_.address = absl::StrCat(address.substr(0, colon), ":", port_->port());
    return listener_.address;
  }

  void start() {
    {
      const std::lock_guard lock(mutex_);
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
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // no shared back-off: ours decides
    // In spite of its name this is how long one attempt to connect may take.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
    arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, kTcpReadChunkBytes);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // cluster traffic never goes through a proxy
    arguments.SetMaxReceiveMessageSize(options_.max_message_bytes);
    arguments.SetMaxSendMessageSize(-1);
    add_keepalive(keepalive,
                  [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
    auto channel = grpc::CreateCustomChannel(
        address, options_.security->channel_credentials(method), arguments);
    auto* call = new ClientCall(&book_, std::move(channel), method, address, options_.security,
                                queue_.get());
    call->attach(handler);
    return std::make_unique<CallStream>(call);
  }

  void post(std::function<void()> function) {
    {
      const std::lock_guard lock(mutex_);
      if (!stopped_) {
        posted_.push_back(std::move(function));
        if (queue_open_ && !std::exchange(woken_, true)) {
          alarm_.Set(queue_.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), static_cast<Tag*>(&wake_));
        }
        return;
      }
    }
    function();  // the loop's thread has ended: whoever cleans up now is alone
  }

  void post_after(Nanoseconds delay, std::function<void()> function) {
    timers_.push({now() + delay, timer_sequence_++, std::move(function)});
  }

  Nanoseconds now() const { return clock_.now(); }

 private:
  struct Timer {
    Nanoseconds due;
    std::uint64_t sequence;
    std::function<void()> function;
    bool operator<(const Timer& other) const {  // the queue's top is the earliest
      return std::tie(other.due, other.sequence) < std::tie(due, sequence);
    }
  };

  /// Completes when something was posted.
  class Wake final : public Tag {
   public:
    explicit Wake(Impl* impl) : impl_(impl) {}
    void complete(bool /*ok*/) override { impl_->run_posted(/*alarm_fired=*/true); }

   private:
    Impl* const impl_;
  };

  absl::StatusOr<std::string> share_port(const std::string& method, const std::string& address,
                                         Acceptor* acceptor) {
    POSEIDON_CHECK(!thread_.joinable(), "listen before start");
    if (address != listener_.address) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot listen on ", address, " too: this process listens on ", listener_.address));
    }
    const bool is_new = listener_.acceptors.emplace(method, acceptor).second;
    POSEIDON_CHECK(is_new, "one acceptor for each method");
    return listener_.address;
  }

  template <typename Set>
  void add_keepalive(std::optional<Milliseconds> both, const Set& set) const {
    const auto interval = both.value_or(options_.keepalive_interval);
    const auto timeout = both.value_or(options_.keepalive_timeout);
    set(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(interval.count()));
    set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(timeout.count()));
    set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }

  void run() {
    run_posted(/*alarm_fired=*/false);  // what was posted before the queue took alarms
    if (server_ != nullptr) new ServerCall(&book_, &listener_);  // NOLINT: deletes itself
    while (!stopping_) {
      run_timers();
      poll(timers_.empty() ? Milliseconds(1000) : timers_.top().due - now());
    }
    shut_down();
  }

  void poll(Nanoseconds patience) {
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

  /// An alarm may be set again only once it has fired, so only that clears `woken_`.
  void run_posted(bool alarm_fired) {
    std::vector<std::function<void()>> batch;
    {
      const std::lock_guard lock(mutex_);
      if (alarm_fired) woken_ = false;
      batch.swap(posted_);
    }
    for (auto& function : batch) function();
  }

  /// Nobody hears an event any more; gRPC gives back every operation it holds, then the queue ends.
  void shut_down() {
    listener_.stopping = true;
    port_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    for (Call* call : std::vector<Call*>(book_.live.begin(), book_.live.end())) call->abort();
    // An ending call issues its last operation, so the queue may close only after all of them.
    while (book_.operations > 0) poll(Milliseconds(100));
    {
      const std::lock_guard lock(mutex_);
      queue_open_ = false;
    }
    queue_->Shutdown();
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
      const std::lock_guard lock(mutex_);
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
  std::unique_ptr<grpc::CompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ServerPort> port_;  ///< goes before the server
  ServerCall::Listener listener_;

  // Loop only.
  CallBook book_;
  std::priority_queue<Timer> timers_;
  std::uint64_t timer_sequence_ = 0;
  bool stopping_ = false;

  std::mutex mutex_;  ///< guards all below
  std::vector<std::function<void()>> posted_;
  bool queue_open_ = false;  ///< the queue takes alarms
  bool woken_ = false;       ///< an alarm is on its way
  bool stopped_ = false;
  grpc::Alarm alarm_;
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
    : impl_(std::make_unique<Impl>(std::move(options))) {}
GrpcTransport::~GrpcTransport() { stop(); }

Transport& GrpcTransport::for_method(std::string_view method,
                                     std::optional<Milliseconds> keepalive) {
  views_.push_back(std::make_unique<View>(impl_.get(), method, keepalive));
  return *views_.back();
}

absl::StatusOr<std::string> GrpcTransport::listen(const std::string& address, Acceptor* acceptor) {
  return impl_->listen(std::string(kExchangeMethod), address, acceptor);
}
void GrpcTransport::start() { impl_->start(); }
void GrpcTransport::stop() { impl_->stop(); }
std::unique_ptr<Stream> GrpcTransport::connect(const std::string& address, StreamHandler* handler) {
  return impl_->connect(std::string(kExchangeMethod), address, std::nullopt, handler);
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
