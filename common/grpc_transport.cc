#include "common/grpc_transport.h"

#include <grpcpp/alarm.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <queue>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/background.h"
#include "common/check.h"
#include "common/connection_door.h"
#include "common/grpc_call.h"
#include "common/roles.h"
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
constexpr Milliseconds kConnectTimeout{5000};

/// The method under which another's sealed streams are carried.
std::string carrier_of(std::string_view method) { return std::string(method) + "Sealed"; }

}  // namespace

class GrpcTransport::Impl {
 public:
  explicit Impl(GrpcTransportOptions options) : options_(std::move(options)) {
    if (options_.max_message_bytes == 0) {
      options_.max_message_bytes = static_cast<int>(kMaxMessageBytes);
    }
    if (options_.security->has_tls()) {
      options_.max_message_bytes += static_cast<int>(kSealOverheadBytes);
      tickets_ = std::make_shared<TicketBook>();
    }
  }

  absl::StatusOr<std::string> listen(const std::string& method, const std::string& address,
                                     ServerCall::Listener::Served served) {
    if (server_ != nullptr) return share_port(method, address, served);
    POSEIDON_CHECK(queue_ == nullptr, "listen before start");
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("address \"", address, "\": HOST:PORT wanted"));
    }
    grpc::ServerBuilder builder;
    POSEIDON_ASSIGN_OR_RETURN(
        port_, options_.security->open_port(builder, address, options_.port, tickets_));
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
    listener_.methods[method] = served;
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
    auto channel = grpc::CreateCustomChannel(
        address, options_.security->channel_credentials(method), channel_arguments(keepalive));
    return call(method, address, std::move(channel), options_.security, handler);
  }

  /// As SealedCarrier::reach.
  void reach(const std::string& method, const std::string& address,
             std::optional<Milliseconds> keepalive, const Ticket& ticket,
             SealedCarrier::Reached reached) {
    if (dialler_ == nullptr) dialler_ = std::make_unique<BackgroundThread>();
    dialler_->enqueue([this, method, address, keepalive, ticket, reached = std::move(reached),
                       deadline = now() + kTicketLife] {
      // Who waited so long, behind others that do not answer, has a ticket that is good no more.
      absl::StatusOr<Descriptor> socket =
          absl::UnavailableError(absl::StrCat("too late to connect to ", address));
      if (now() < deadline) {
        socket = connect_with_ticket(address, ticket, kConnectTimeout, stops_dialling_);
      }
      // Shared because functions that are posted are copied; closed unless a channel takes it.
      const auto shared = std::make_shared<absl::StatusOr<Descriptor>>(std::move(socket));
      post([this, method, address, keepalive, reached, shared] {
        if (stopping_) return;
        if (!shared->ok()) {
          reached(shared->status());
          return;
        }
        reached([this, method, address, keepalive, shared](StreamHandler* handler) {
          auto channel = grpc::CreateCustomInsecureChannelFromFd(address, (*shared)->release(),
                                                                 channel_arguments(keepalive));
          return call(method, address, std::move(channel), nullptr, handler);
        });
      });
    });
  }

  void expect(const Ticket& ticket) { tickets_->expect(ticket); }
  Security& security() { return *options_.security; }

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

  std::unique_ptr<Stream> call(const std::string& method, const std::string& address,
                               std::shared_ptr<grpc::Channel> channel,
                               std::shared_ptr<const Security> security, StreamHandler* handler) {
    auto* made = new ClientCall(&book_, std::move(channel), method, address, std::move(security),
                                queue_.get());
    made->attach(handler);
    return std::make_unique<CallStream>(made);
  }

  absl::StatusOr<std::string> share_port(const std::string& method, const std::string& address,
                                         ServerCall::Listener::Served served) {
    POSEIDON_CHECK(!thread_.joinable(), "listen before start");
    if (address != listener_.address) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot listen on ", address, " too: this process listens on ", listener_.address));
    }
    const bool is_new = listener_.methods.emplace(method, served).second;
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
    stops_dialling_ = true;
    dialler_.reset();
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
  std::shared_ptr<TicketBook> tickets_;  ///< null without TLS

  // Loop only.
  CallBook book_;
  std::priority_queue<Timer> timers_;
  std::uint64_t timer_sequence_ = 0;
  bool stopping_ = false;
  std::unique_ptr<BackgroundThread> dialler_;  ///< from the first ticket on
  std::atomic<bool> stops_dialling_{false};

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
    return impl_->listen(method_, address, {.acceptor = acceptor, .by_ticket = false});
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

/// Streams without TLS on the same loop and port, for who has a ticket.
class GrpcTransport::Carrier final : public SealedCarrier {
 public:
  Carrier(Impl* impl, std::string_view method, std::optional<Milliseconds> keepalive)
      : impl_(impl), method_(carrier_of(method)), keepalive_(keepalive) {}
  void reach(const std::string& address, const Ticket& ticket, Reached reached) override {
    impl_->reach(method_, address, keepalive_, ticket, std::move(reached));
  }
  absl::Status listen(const std::string& address, Acceptor* acceptor) override {
    return impl_->listen(method_, address, {.acceptor = acceptor, .by_ticket = true}).status();
  }
  void expect(const Ticket& ticket) override { impl_->expect(ticket); }

 private:
  Impl* const impl_;
  const std::string method_;
  const std::optional<Milliseconds> keepalive_;
};

GrpcTransport::GrpcTransport(GrpcTransportOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))),
      exchange_(&add_view(kExchangeMethod, std::nullopt)) {}
GrpcTransport::~GrpcTransport() { stop(); }

Transport& GrpcTransport::for_method(std::string_view method,
                                     std::optional<Milliseconds> keepalive) {
  return add_view(method, keepalive);
}

Transport& GrpcTransport::add_view(std::string_view method, std::optional<Milliseconds> keepalive) {
  View& view = *views_.emplace_back(std::make_unique<View>(impl_.get(), method, keepalive));
  if (!impl_->security().has_tls() || !rule_of(method).is_sealed) return view;
  Carrier& carrier =
      *carriers_.emplace_back(std::make_unique<Carrier>(impl_.get(), method, keepalive));
  return *sealed_.emplace_back(std::make_unique<SealedTransport>(
      &view, &carrier, [this](const std::string& peer, const std::string& what) {
        impl_->security().refuse(PeerRefusal::kBrokenSeal, peer, what);
      }));
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
