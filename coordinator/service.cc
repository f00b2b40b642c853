#include "coordinator/service.h"

#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/grpc/grpc_status.h"
#include "common/node/node_counters.h"
#include "common/pages/http_server.h"
#include "common/pages/metrics_server.h"
#include "common/threads/mutex.h"
#include "coordinator/full_door.h"
#include "coordinator/members/admission.h"
#include "coordinator/members/reach_addresses.h"
#include "coordinator/trace_stream.h"
#include "coordinator/watch/status_site.h"
#include "grpcpp/grpcpp.h"
#include "poseidon/v1/control.grpc.pb.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// Messages waiting for one node; it normally has at most a few. Beyond it the node is dropped.
constexpr std::size_t kMaxQueuedMessages = 64;
/// Of one message to us: a job with its network inline, or a part of a model.
constexpr int kMaxReceiveBytes = 8 << 20;
constexpr Milliseconds kTickInterval{50};
/// How long a closing stream may take to send its last messages until it is cancelled.
constexpr std::chrono::seconds kCloseTimeout{2};
constexpr std::chrono::seconds kShutdownTimeout{1};
/// How long an address that a node announces may take to answer.
constexpr std::chrono::seconds kReachPatience{3};
/// Nodes may ping a silent connection this often (the control client does: kAttachKeepalive).
constexpr int kMinPingIntervalMs = 1000;

template <typename Message>
grpc::ByteBuffer to_bytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool is_owned = false;
  const grpc::Status status =
      grpc::SerializationTraits<Message>::Serialize(message, &bytes, &is_owned);
  POSEIDON_CHECK(status.ok(), "what we send is small");
  return bytes;
}

/// One Attach stream. Reads its messages itself: gRPC tells one that is none like the end. Owned by
/// gRPC (self_) until OnDone and, while attached, by Cluster. Lock order: Cluster's mutex, then
/// mutex_; Cluster is never called with mutex_ held.
class NodeStream final : public NodeLink,
                         public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  NodeStream(Cluster* cluster, Security* security, grpc::CallbackServerContext* context)
      : cluster_(cluster),
        security_(security),
        context_(context),
        peer_host_(host_of_peer(context->peer())) {}

  static std::shared_ptr<NodeStream> open(Cluster* cluster, Security* security,
                                          grpc::CallbackServerContext* context) {
    auto stream = std::make_shared<NodeStream>(cluster, security, context);
    {
      const MutexLock lock(stream->mutex_);
      stream->self_ = stream;
    }
    cluster->on_open(stream);
    stream->read();
    return stream;
  }

  // ---- NodeLink ----

  bool send(const v1::CoordinatorMessage& message) override {
    const MutexLock lock(mutex_);
    if (closing_ || outgoing_.size() >= kMaxQueuedMessages) return false;
    outgoing_.push_back(to_bytes(message));
    write_locked();
    return true;
  }

  void close(const absl::Status& status) override {
    const MutexLock lock(mutex_);
    if (closing_) return;
    closing_ = true;
    close_status_ = status;
    close_deadline_ = std::chrono::steady_clock::now() + kCloseTimeout;
    write_locked();
  }

  std::string peer_host() const override { return peer_host_; }

  /// A closed stream whose node does not take the last messages is cut.
  void cancel_if_stuck(std::chrono::steady_clock::time_point now) {
    const MutexLock lock(mutex_);
    if (self_ != nullptr && closing_ && !finished_ && now > close_deadline_) context_->TryCancel();
  }

  // ---- gRPC ----

  void OnReadDone(bool ok) override {
    if (!ok) {
      cluster_->on_end(this, "ended its stream");
      close(absl::OkStatus());
      return;
    }
    v1::NodeMessage message;
    if (!grpc::SerializationTraits<v1::NodeMessage>::Deserialize(&incoming_, &message).ok()) {
      cluster_->count_refusal(Refusal::kMalformed, absl::StrCat("Attach from ", context_->peer(),
                                                                ": bytes that are not a message"));
      cluster_->on_end(this, "sent bytes that are not a message");
      close(absl::InvalidArgumentError("bytes that are not a message"));
      return;
    }
    if (const absl::Status may = may_say(message); !may.ok()) {
      cluster_->on_end(this, "claims a role that its certificate does not have");
      close(may);
      return;
    }
    cluster_->on_message(this, message);
    read();
  }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    writing_ = false;
    outgoing_.pop_front();
    if (!ok) outgoing_.clear();
    write_locked();
  }

  void OnCancel() override {
    cluster_->on_end(this, "broke its stream");
    close(absl::CancelledError("the stream broke"));
  }

  void OnDone() override {
    std::shared_ptr<NodeStream> self;  // declared first: dies after the lock
    const MutexLock lock(mutex_);
    self = std::move(self_);
  }

 private:
  void read() {
    const MutexLock lock(mutex_);
    if (!finished_) StartRead(&incoming_);
  }

  void write_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      finished_ = true;
      Finish(to_grpc(close_status_));
    }
  }

  /// A node joins with its certificate's role.
  absl::Status may_say(const v1::NodeMessage& message) const {
    if (!message.has_join()) return absl::OkStatus();
    const std::optional<RoleSet> roles = security_->roles_of(*context_);
    const PeerRole wanted =
        message.join().role() == v1::NODE_ROLE_SERVER ? PeerRole::kServer : PeerRole::kWorker;
    if (!roles || roles->has(wanted)) return absl::OkStatus();
    const std::string why =
        absl::StrCat("to join as ", to_string(RoleSet{wanted}),
                     " takes the certificate of one; this is that of ", to_string(*roles));
    security_->refuse(PeerRefusal::kWrongRole, context_->peer(), why);
    return absl::PermissionDeniedError(why);
  }

  Cluster* const cluster_;
  Security* const security_;
  grpc::CallbackServerContext* const context_;
  const std::string peer_host_;
  grpc::ByteBuffer incoming_;  ///< gRPC's between StartRead and OnReadDone

  Mutex mutex_;
  std::deque<grpc::ByteBuffer> outgoing_
      ABSL_GUARDED_BY(mutex_);  ///< the front is gRPC's while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status close_status_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point close_deadline_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<NodeStream> self_ ABSL_GUARDED_BY(mutex_);
};

/// One upload of the model; writes, checks and commits on gRPC's thread, holds no lock while it
/// does.
class UploadReactor final : public grpc::ServerReadReactor<v1::ModelPart> {
 public:
  UploadReactor(Cluster* cluster, grpc::CallbackServerContext* context)
      : cluster_(cluster), context_(context) {
    StartRead(&part_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      finish(file_started_ ? cluster_->commit_upload(upload_)
                           : absl::InvalidArgumentError("the model has no parts"));
      return;
    }
    const absl::Status status = take_part();
    if (!status.ok()) {
      finish(status);
      return;
    }
    StartRead(&part_);
  }
  void OnDone() override { delete this; }

 private:
  absl::Status take_part() {
    if (!file_started_) {
      epoch_ = part_.epoch();
      total_bytes_ = part_.total_bytes();
      POSEIDON_ASSIGN_OR_RETURN(upload_,
                                cluster_->begin_upload(epoch_, total_bytes_, part_.sha256()));
      file_started_ = true;
    }
    if (part_.epoch() != epoch_ || part_.total_bytes() != total_bytes_) {
      return absl::InvalidArgumentError("the parts of the model disagree on epoch or size");
    }
    return worth_another_try(upload_.file->append(part_.offset(), part_.data()));
  }

  void finish(const absl::Status& status) {
    if (file_started_) {
      upload_.file.reset();
      cluster_->end_upload(epoch_, status);
      upload_.directory.reset();
    }
    if (!status.ok()) refuse(status);
    Finish(to_grpc(status));
  }

  void refuse(const absl::Status& why) {
    const std::string text =
        absl::StrCat("UploadModel from ", context_->peer(), ": ", why.message());
    if (context_->IsCancelled() || absl::IsUnavailable(why)) {
      // The stream broke, or it is for us to be put right; or it comes too early, and again.
      spdlog::log(file_started_ ? spdlog::level::warn : spdlog::level::debug, "{}", text);
    } else if (absl::IsInvalidArgument(why)) {
      cluster_->count_refusal(Refusal::kMalformed, text);
    } else {
      cluster_->count_refusal(absl::IsAborted(why) ? Refusal::kStaleEpoch : Refusal::kWrongState,
                              text);
    }
  }

  Cluster* const cluster_;
  grpc::CallbackServerContext* const context_;
  v1::ModelPart part_;
  bool file_started_ = false;
  std::uint64_t epoch_ = 0;
  std::uint64_t total_bytes_ = 0;
  Cluster::Upload upload_;
};

/// A stream that ends before it begins.
template <typename Reactor>
class TurnedAway final : public Reactor {
 public:
  explicit TurnedAway(const absl::Status& why) { this->Finish(to_grpc(why)); }
  void OnDone() override { delete this; }
};

/// Notices calls whose one message gRPC cannot read, and which it answers by itself. (gRPC does not
/// report a message above kMaxReceiveBytes.)
class UnreadableCall final : public grpc::experimental::Interceptor {
 public:
  UnreadableCall(Cluster* cluster, grpc::experimental::ServerRpcInfo* call)
      : cluster_(cluster), call_(call) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    const bool has_read = batch->QueryInterceptionHookPoint(
        grpc::experimental::InterceptionHookPoints::POST_RECV_MESSAGE);
    if (has_read && batch->GetRecvMessage() == nullptr) {
      cluster_->count_refusal(Refusal::kMalformed, absl::StrCat(call_->method(), " from ",
                                                                call_->server_context()->peer(),
                                                                ": bytes that are not a message"));
    }
    batch->Proceed();
  }

 private:
  Cluster* const cluster_;
  grpc::experimental::ServerRpcInfo* const call_;
};

class UnreadableCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit UnreadableCalls(Cluster* cluster) : cluster_(cluster) {}

  /// Not of streams to us, whose end is read as nothing, too.
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    using Type = grpc::experimental::ServerRpcInfo::Type;
    const bool has_one = call->type() == Type::UNARY || call->type() == Type::SERVER_STREAMING;
    return has_one ? new UnreadableCall(cluster_, call) : nullptr;
  }

 private:
  Cluster* const cluster_;
};

class GrpcService final : public v1::Coordinator::CallbackService {
 public:
  GrpcService(Cluster* cluster, Security* security) : cluster_(cluster), security_(security) {
    const google::protobuf::MethodDescriptor* attach = v1::NodeMessage::descriptor()
                                                           ->file()
                                                           ->FindServiceByName("Coordinator")
                                                           ->FindMethodByName("Attach");
    MarkMethodRawCallback(
        attach->index(),
        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
            [this](grpc::CallbackServerContext* context) { return open_stream(context); }));
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* open_stream(
      grpc::CallbackServerContext* context) {
    if (const absl::Status may = admit(context, "Attach"); !may.ok()) {
      return new TurnedAway<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>(may);
    }
    std::shared_ptr<NodeStream> stream = NodeStream::open(cluster_, security_, context);
    const MutexLock lock(mutex_);
    streams_.push_back(stream);
    return stream.get();  // keeps itself alive until OnDone, which gRPC holds back until we return
  }

  void cancel_stuck_streams() {
    const auto now = std::chrono::steady_clock::now();
    const MutexLock lock(mutex_);
    std::erase_if(streams_, [now](const std::weak_ptr<NodeStream>& entry) {
      const std::shared_ptr<NodeStream> stream = entry.lock();
      if (stream) stream->cancel_if_stuck(now);
      return stream == nullptr;
    });
  }

  /// Several times a second.
  void look_at_door() {
    const MutexLock lock(mutex_);
    door_.look(security_->refused(PeerRefusal::kTooMany), SystemClock().now());
  }

  /// Behind the message: connections were refused, and who is awaited may be among them.
  void say_if_full(v1::GetStatusResponse& status) {
    const MutexLock lock(mutex_);
    const std::string text = door_.text(SystemClock().now());
    if (text.empty()) return;
    status.set_message(absl::StrCat(status.message(), status.message().empty() ? "" : "; ", text));
  }

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context,
                                   const v1::SubmitRequest* request,
                                   v1::SubmitResponse* response) override {
    return answer(context, "Submit", *request, response,
                  [&] { return cluster_->submit(*request); });
  }

  grpc::ServerUnaryReactor* Declare(grpc::CallbackServerContext* context,
                                    const v1::DeclareRequest* request,
                                    v1::DeclareResponse* response) override {
    return answer(context, "Declare", *request, response,
                  [&] { return cluster_->declare(*request); });
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override {
    return answer(context, "GetStatus", *request, response,
                  [&] { return status(*request, context->peer()); });
  }

  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsResponse* response) override {
    return answer(context, "ListCheckpoints", *request, response,
                  [&] { return cluster_->list_checkpoints(*request); });
  }
  grpc::ServerUnaryReactor* RequestCheckpoint(grpc::CallbackServerContext* context,
                                              const v1::RequestCheckpointRequest* request,
                                              v1::RequestCheckpointResponse* response) override {
    return answer(context, "RequestCheckpoint", *request, response,
                  [&] { return cluster_->request_checkpoint(*request); });
  }
  grpc::ServerUnaryReactor* LocateCheckpoint(grpc::CallbackServerContext* context,
                                             const v1::LocateCheckpointRequest* request,
                                             v1::LocateCheckpointResponse* response) override {
    return answer(context, "LocateCheckpoint", *request, response,
                  [&] { return cluster_->locate_checkpoint(*request); });
  }
  grpc::ServerUnaryReactor* RestoreCheckpoint(grpc::CallbackServerContext* context,
                                              const v1::RestoreCheckpointRequest* request,
                                              v1::SubmitResponse* response) override {
    return answer(context, "RestoreCheckpoint", *request, response,
                  [&] { return cluster_->restore_checkpoint(*request); });
  }

  grpc::ServerUnaryReactor* RemoveCheckpoints(grpc::CallbackServerContext* context,
                                              const v1::RemoveCheckpointsRequest* request,
                                              v1::RemoveCheckpointsResponse* response) override {
    return answer(context, "RemoveCheckpoints", *request, response,
                  [&] { return cluster_->remove_checkpoints(*request); });
  }

  grpc::ServerUnaryReactor* EndJob(grpc::CallbackServerContext* context,
                                   const v1::EndJobRequest* request,
                                   v1::EndJobResponse* response) override {
    return answer(context, "EndJob", *request, response,
                  [&] { return cluster_->end_job(*request); });
  }

  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context,
                                      const v1::DrainNodeRequest* request,
                                      v1::DrainNodeResponse* response) override {
    return answer(context, "DrainNode", *request, response,
                  [&] { return cluster_->drain_node(*request); });
  }

  grpc::ServerWriteReactor<v1::TracePart>* Trace(grpc::CallbackServerContext* context,
                                                 const v1::TraceRequest* request) override {
    absl::Status may = admit(context, "Trace");
    if (may.ok()) may = check_version(*context, "Trace", request->protocol_version());
    if (!may.ok()) {
      return new TurnedAway<grpc::ServerWriteReactor<v1::TracePart>>(may);
    }
    return TraceStream::open(cluster_, *request);
  }

  grpc::ServerReadReactor<v1::ModelPart>* UploadModel(grpc::CallbackServerContext* context,
                                                      v1::UploadModelResponse*) override {
    if (const absl::Status may = admit(context, "UploadModel"); !may.ok()) {
      return new TurnedAway<grpc::ServerReadReactor<v1::ModelPart>>(may);
    }
    return new UploadReactor(cluster_, context);
  }

 private:
  /// The cluster's counts, with those of its door.
  absl::StatusOr<v1::GetStatusResponse> status(const v1::GetStatusRequest& request,
                                               const std::string& peer) {
    absl::StatusOr<v1::GetStatusResponse> status = cluster_->status(request, peer);
    if (!status.ok()) return status;
    say_if_full(*status);
    v1::CoordinatorCounters& own = *status->mutable_counters();
    fill_refused_connections(*security_, *own.mutable_refused_connections());
    if (const auto expiry = security_->expires_unix_s()) {
      own.set_certificate_expiry_unix_s(*expiry);
    }
    return status;
  }

  absl::Status admit(grpc::CallbackServerContext* context, const char* method) {
    return security_->admit(*context, str_cat(kCoordinatorMethods, method));
  }

  absl::Status check_version(const grpc::CallbackServerContext& context, const char* method,
                             std::uint32_t theirs) {
    absl::Status status = check_protocol_version(theirs, "the command line tool");
    if (!status.ok()) {
      cluster_->count_refusal(Refusal::kVersion, absl::StrCat(method, " from ", context.peer(),
                                                              ": ", status.message()));
    }
    return status;
  }

  /// Asks the cluster if the caller may, and speaks our protocol.
  template <typename Request, typename Response, typename Ask>
  grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, const char* method,
                                   const Request& request, Response* response, Ask ask) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::Status status = admit(context, method);
    if (status.ok()) status = check_version(*context, method, request.protocol_version());
    if (status.ok()) {
      absl::StatusOr<Response> result = ask();
      status = result.status();
      if (status.ok()) *response = *std::move(result);
    }
    reactor->Finish(to_grpc(status));
    return reactor;
  }

  Cluster* const cluster_;
  Security* const security_;
  Mutex mutex_;
  std::vector<std::weak_ptr<NodeStream>> streams_ ABSL_GUARDED_BY(mutex_);
  FullDoor door_ ABSL_GUARDED_BY(mutex_);
};

AddressProbes::Seams probing(bool wanted) {
  if (!wanted) return {};
  return {.reach =
              [](const std::vector<std::string>& addresses, const std::atomic<bool>& stop) {
                return reach_addresses(addresses, kReachPatience, stop);
              },
          .background = std::make_unique<BackgroundThread>()};
}

class CoordinatorServer final : public CoordinatorService {
 public:
  CoordinatorServer(const CoordinatorOptions& options, JobResolver resolver,
                    std::unique_ptr<StateDirectory> state, const Clock* clock)
      : security_(options.security),
        cluster_(options.cluster, std::move(resolver), std::move(state), clock,
                 disk_with(security_), probing(options.probes_addresses)),
        site_([this] { return view(); }, clock),
        service_(&cluster_, security_.get()),
        pulse_(options.pulse) {}

  ~CoordinatorServer() override { shutdown("the service is destroyed", std::nullopt); }

  absl::Status serve_metrics(const std::string& listen) {
    if (listen.empty()) return absl::OkStatus();
    const auto page = [this] {
      MetricFamilies families = coordinator_page(cluster_.figures());
      add_process_figures("coordinator", families);
      add_security_figures("coordinator", *security_, families);
      return families;
    };
    POSEIDON_ASSIGN_OR_RETURN(metrics_, MetricsServer::start(listen, security_, page, pulse_));
    return absl::OkStatus();
  }

  absl::Status serve_status(const std::string& text) {
    if (text.empty()) return absl::OkStatus();
    const absl::StatusOr<HostPort> listen = parse_page_address(text);
    if (!listen.ok()) return of_option("--status-listen", listen.status());
    auto page = HttpServer::start(
        *listen, security_, [this](const HttpRequest& request) { return site_.answer(request); });
    if (!page.ok()) return of_option("--status-listen", page.status());
    status_ = *std::move(page);
    if (!is_loopback_host(listen->host) && !security_->has_tls()) {
      spdlog::warn(
          "the status page at {} is open to everybody who reaches that address, without a "
          "password; --status-listen {} (a port only) keeps it on this machine",
          to_string(*listen), listen->port);
    }
    return absl::OkStatus();
  }

  absl::Status listen(const HostPort& listen,
                      const std::function<absl::Status(const std::string& address)>& on_listening) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    POSEIDON_ASSIGN_OR_RETURN(port_, security_->open_port(builder, to_string(listen)));
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> noticing;
    noticing.push_back(std::make_unique<UnreadableCalls>(&cluster_));
    builder.experimental().SetInterceptorCreators(std::move(noticing));
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC does not serve");
    address_ = to_string({listen.host, port_->port()});
    if (on_listening != nullptr) POSEIDON_RETURN_IF_ERROR(on_listening(address_));
    // Nothing may fail after it: the end of a coordinator that has a job ends the job.
    POSEIDON_RETURN_IF_ERROR(cluster_.restore());
    // This writes a new list of scrape targets; a coordinator that does not start must leave the
    // list alone.
    cluster_.set_metrics_address(metrics_address(), security_->has_tls());
    port_->start();
    timer_ = std::thread([this] { timer_loop(); });
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }
  std::string metrics_address() const override {
    return metrics_ == nullptr ? "" : metrics_->address();
  }
  std::string metrics_url() const override { return metrics_ == nullptr ? "" : metrics_->url(); }
  std::string status_url() const override { return status_ == nullptr ? "" : status_->url(); }

  void shutdown(const std::string& reason, std::optional<OnShutdown> how) override {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      stopping_ = true;
      changed_.notify_all();
    }
    if (timer_.joinable()) timer_.join();
    cluster_.shutdown(reason, how);
    port_.reset();
    if (server_ != nullptr) {
      // What is still open after the deadline is cancelled by gRPC.
      server_->Shutdown(std::chrono::system_clock::now() + kShutdownTimeout);
      server_->Wait();
    }
  }

 private:
  static ClusterDisk disk_with(const std::shared_ptr<Security>& security) {
    ClusterDisk disk;
    disk.leave_stopped_run = [security](const StoppedRun& run,
                                        const std::filesystem::path& run_directory) {
      return leave_stopped_run(run, run_directory, security);
    };
    return disk;
  }

  StatusView view() {
    StatusView view = cluster_.view();
    service_.say_if_full(view.status);
    return view;
  }

  void timer_loop() {
    MutexLock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      cluster_.tick();
      service_.cancel_stuck_streams();
      service_.look_at_door();
      pulse_->turn(SystemClock().now());
      lock.lock();
      changed_.wait_for(mutex_, kTickInterval,
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
    }
  }

  const std::shared_ptr<Security> security_;
  Cluster cluster_;
  StatusSite site_;
  GrpcService service_;
  LoopPulse* const pulse_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ServerPort> port_;  ///< goes before the server
  std::string address_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread timer_;
  std::unique_ptr<MetricsServer> metrics_;  ///< these last: they stop reading all above first
  std::unique_ptr<HttpServer> status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorService>> CoordinatorService::start(
    const CoordinatorOptions& options, JobResolver resolver, const Clock* clock) {
  POSEIDON_CHECK(clock != nullptr && resolver != nullptr && options.pulse != nullptr,
                 "all are wired");
  POSEIDON_RETURN_IF_ERROR(validate(options.cluster.membership));
  POSEIDON_ASSIGN_OR_RETURN(const HostPort listen,
                            parse_option_address("--listen", options.listen, PortZero::kAllowed));
  auto state = StateDirectory::open(options.state_dir);
  if (!state.ok()) return of_option("--state-dir", state.status());
  auto server =
      std::make_unique<CoordinatorServer>(options, std::move(resolver), *std::move(state), clock);
  POSEIDON_RETURN_IF_ERROR(server->serve_metrics(options.metrics_listen));
  POSEIDON_RETURN_IF_ERROR(server->serve_status(options.status_listen));
  POSEIDON_RETURN_IF_ERROR(server->listen(listen, options.on_listening));
  return server;
}

}  // namespace poseidon
