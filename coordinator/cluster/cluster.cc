#include "coordinator/cluster/cluster.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/log_limit.h"
#include "common/base/text.h"
#include "common/files/sha256.h"
#include "common/threads/mutex.h"
#include "coordinator/members/admission.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// A report that says it is older can only be wrong: no node waits longer for a coordinator.
constexpr Milliseconds kOldestReport = std::chrono::hours(24 * 365);
CalibrationAnswer to_answer(const v1::CalibrationReport& report) {
  CalibrationAnswer answer{.step = report.step(),
                           .error = one_line(report.error()),
                           .layers = {},
                           .device_ops_per_s = report.device_ops_per_s(),
                           .server_sum_bytes_per_s = report.server_sum_bytes_per_s(),
                           .send_bytes_per_s = report.send_bytes_per_s(),
                           .receive_bytes_per_s = report.receive_bytes_per_s(),
                           .latency_s = report.latency_seconds()};
  for (const v1::LayerTimesMessage& layer : report.layers()) {
    answer.layers.push_back({.name = layer.name(),
                             .forward_s = layer.forward_seconds(),
                             .backward_s = layer.backward_seconds()});
  }
  return answer;
}

MissingPart missing_part(const v1::CheckpointReport& report) {
  if (report.too_late()) return MissingPart::kTooLate;
  return report.busy() ? MissingPart::kBusy : MissingPart::kFailed;
}

FailureKind to_failure_kind(v1::Failure failure) {
  if (failure == v1::FAILURE_CHECKPOINT) return FailureKind::kCheckpoint;
  return failure == v1::FAILURE_PEER ? FailureKind::kPeer : FailureKind::kJob;
}

/// How long shutdown waits for the last files.
constexpr std::chrono::seconds kFilesTimeout{10};
constexpr std::chrono::seconds kSettleTimeout{2};  ///< of manifests that are being written, or go

}  // namespace

Cluster::Cluster(ClusterOptions options, JobResolver resolver,
                 std::unique_ptr<StateDirectory> state, const Clock* clock, ClusterDisk disk,
                 AddressProbes::Seams probing)
    : context_{.options = std::move(options),
               .state = std::move(state),
               .clock = clock,
               .disk = std::move(disk),
               .mutex = {}},
      watch_(context_),
      membership_(context_.options.membership),
      probes_(std::move(probing), context_.mutex,
              [this](bool is_bad, const std::string& text) {
                watch_.note(is_bad ? EventKind::kAlarm : EventKind::kJoin, text);
              }),
      targets_(context_.state->path(), *clock, context_.mutex, *context_.disk.background),
      clients_(context_.options.last_words),
      traces_(context_, streams_),
      checkpoints_(
          context_, membership_, streams_, watch_,
          [this](const CheckpointManifest& manifest, const absl::Status& status) {
            host_.on_manifest_written(manifest, status);
          },
          [this](const CheckpointManifest& manifest, const absl::Status& status) {
            host_.on_manifest_removed(manifest, status);
          }),
      host_(context_, surroundings()),
      leaving_(context_, watch_, streams_, membership_, host_),
      report_(context_, surroundings(), host_, uploads_, probes_),
      submissions_(context_, std::move(resolver), surroundings(), host_, report_),
      checkpoint_calls_(context_, surroundings(), host_, submissions_),
      returns_(context_, surroundings(), host_, submissions_) {}

JobSurroundings Cluster::surroundings() {
  return {.membership = membership_,
          .streams = streams_,
          .watch = watch_,
          .targets = targets_,
          .clients = clients_,
          .traces = traces_,
          .checkpoints = checkpoints_,
          .output = output_};
}

Cluster::~Cluster() {
  {
    MutexLock lock(context_.mutex);
    context_.ending = true;
  }
  // These threads call us back: they must end while everything here still lives.
  context_.disk.background.reset();
  std::shared_ptr<RunFiles> directory;
  {
    MutexLock lock(context_.mutex);
    directory = output_.release();
  }
  directory.reset();
}

absl::Status Cluster::restore() { return returns_.restore(); }

// ---- streams ----

void Cluster::on_open(const std::shared_ptr<NodeLink>& link) {
  MutexLock lock(context_.mutex);
  if (context_.shutting_down) {
    link->close(absl::UnavailableError("the coordinator is stopping"));
    return;
  }
  // Twice the members: those that join while the places of others run out.
  if (streams_.size() >= 2 * context_.options.membership.max_nodes) {
    link->close(absl::ResourceExhaustedError("too many nodes are connected"));
    return;
  }
  streams_.open(link, context_.now());
}

void Cluster::on_message(NodeLink* link, const v1::NodeMessage& message) {
  MutexLock lock(context_.mutex);
  if (!streams_.contains(link)) return;  // closed by us a moment ago
  host_.extend_deadlines(context_.now());
  const std::optional<NodeId> from = streams_.node_of(link);
  if (!from) {
    if (message.has_join()) {
      handle_join(link, message.join());
    } else {
      watch_.refuse(Refusal::kNotJoined,
                    absl::StrCat("a message before Join from ", link->peer_host()));
      streams_.close(link, absl::InvalidArgumentError("the first message must be Join"));
    }
    return;
  }
  membership_.heard_from(*from, context_.now());
  handle_member(*from, message);
}

void Cluster::on_end(NodeLink* link, const std::string& reason) {
  MutexLock lock(context_.mutex);
  if (!streams_.contains(link)) return;
  host_.extend_deadlines(context_.now());
  const std::optional<NodeId> node = streams_.node_of(link);
  if (!node) {
    streams_.erase(link);
    return;
  }
  if (host_.job() && host_.job()->has_part(*node)) {
    streams_.erase(link);
    returns_.detach(*node, reason);
    host_.streams_changed();
  } else if (const auto gone = membership_.leave(*node, reason, context_.now())) {
    host_.depart(*gone, absl::OkStatus());
  }
}

void Cluster::handle_join(NodeLink* link, const v1::Join& join) {
  absl::StatusOr<NodeInfo> node = admit(join, link->peer_host());
  if (node.ok() && returns_.is_beyond_epoch(*node, join)) returns_.end_outdated_epoch(*node, join);
  if (node.ok() && join.has_resume() && returns_.reattach(link, *node, join.resume())) return;
  if (node.ok()) node = with_its_job(*std::move(node));
  if (node.ok() && !context_.state->skip_epochs(node->newest_epoch.value())) {
    node = absl::InvalidArgumentError(
        absl::StrCat("Join.newest_epoch is ", join.newest_epoch(),
                     ", far beyond this coordinator's: give the server an empty --data-dir"));
  }
  if (node.ok()) returns_.make_room(*node, join);
  absl::StatusOr<NodeId> id = node.ok() ? membership_.join(*node, context_.now()) : node.status();
  if (!id.ok()) {
    watch_.refuse(absl::IsFailedPrecondition(id.status()) ? Refusal::kVersion : Refusal::kMalformed,
                  absl::StrCat("Join from ", link->peer_host(), ": ", id.status().message()));
    streams_.close(link, id.status());
    return;
  }
  streams_.set_node(link, *id);
  link->send(returns_.joined_message(*id, join_note(node->role)));
  const NodeInfo* member = membership_.find(*id);
  if (member->role == NodeRole::kServer) checkpoints_.send_keep(*member, host_.active_epoch());
  watch_.note(
      EventKind::kJoin,
      absl::StrCat(node_text(*member), " joined as node ", id->value(), " (",
                   member->device.empty() ? "" : absl::StrCat("device ", member->device, ", "),
                   "version ",
                   member->software_version.empty() ? "unknown" : member->software_version, ")"));
  probes_.on_join(*member);
  host_.members_changed();
}

/// A program that comes when its job is over would wait for ever.
absl::StatusOr<NodeInfo> Cluster::with_its_job(NodeInfo node) const {
  if (node.job.empty()) return node;
  const JobRun* const job = host_.job();
  if (job != nullptr && job->description().id == node.job && !job->ended()) return node;
  return absl::FailedPreconditionError(
      absl::StrCat("job ", one_line(node.job), ", which this program serves, ",
                   job != nullptr && job->description().id == node.job
                       ? absl::StrCat("is over: it is ", job_state_name(job->state()))
                       : "is not the job of this cluster",
                   "; start the program again for another run"));
}

std::string Cluster::join_note(NodeRole role) const {
  if (!host_.job() || host_.job()->ended() || host_.job()->state() == JobState::kWaiting) return "";
  return absl::StrFormat(
      "job %s is %s with %d workers and %d servers; this %s %s", host_.job()->description().id,
      job_state_name(host_.job()->state()), host_.job()->view().roster.workers.size(),
      host_.job()->view().roster.servers.size(), role_name(role),
      role == NodeRole::kWorker
          ? "joins the job if it accepts more workers; otherwise it stands by to replace a lost one"
          : "stands by to replace a lost one, and for the next job");
}

void Cluster::handle_member(NodeId from, const v1::NodeMessage& message) {
  switch (message.body_case()) {
    case v1::NodeMessage::kHeartbeat:
      handle_heartbeat(from, message.heartbeat());
      return;
    case v1::NodeMessage::kGoodbye:
      leaving_.on_goodbye(from, one_line(message.goodbye().reason()));
      return;
    case v1::NodeMessage::kLeave: {
      const std::string reason = one_line(message.leave().reason());
      if (const auto gone =
              membership_.leave(from, absl::StrCat("left (", reason, ")"), context_.now())) {
        host_.depart(*gone, absl::OkStatus(), DepartureKind::kLeft);
      }
      return;
    }
    case v1::NodeMessage::kJoin:
      watch_.refuse(Refusal::kDuplicate,
                    absl::StrCat("a second Join from ", sender_text(membership_, from)));
      return;
    case v1::NodeMessage::BODY_NOT_SET:
      watch_.refuse(Refusal::kMalformed,
                    absl::StrCat("an empty message from ", sender_text(membership_, from)));
      return;
    case v1::NodeMessage::kClock:
    case v1::NodeMessage::kTrace:
      traces_.on_message(from, message);
      return;
    default:
      break;
  }
  if (!host_.job()) {
    watch_.refuse(Refusal::kWrongState,
                  absl::StrCat("a job message from ", sender_text(membership_, from),
                               ", but there is no job"));
    return;
  }
  JobActions actions = handle_report(from, message);
  for (JobAction& action : actions) {
    // A job knows its own nodes only.
    if (auto* refusal = std::get_if<CountRefusal>(&action)) {
      absl::StrAppend(&refusal->text, " (sent by ", sender_text(membership_, from), ")");
    }
  }
  host_.apply(actions);
}

JobActions Cluster::handle_report(NodeId from, const v1::NodeMessage& message) {
  const Nanoseconds now = context_.now();
  // Beyond int64 it can only be wrong; as -1 it is refused like any wrong iteration.
  const auto iteration = [](std::uint64_t value) {
    return value > static_cast<std::uint64_t>(INT64_MAX) ? Iteration{-1}
                                                         : static_cast<Iteration>(value);
  };
  switch (message.body_case()) {
    case v1::NodeMessage::kCalibration:
      return host_.job()->on_calibration(from, Epoch(message.calibration().epoch()),
                                         to_answer(message.calibration()), now);
    case v1::NodeMessage::kReady:
      return host_.job()->on_ready(from, Epoch(message.ready().epoch()), now,
                                   data_identity_of(message.ready()));
    case v1::NodeMessage::kIteration: {
      const v1::IterationReport& report = message.iteration();
      const std::uint64_t advances = host_.job()->view().training.advances();
      const auto age = static_cast<Milliseconds::rep>(
          std::min(report.age_ms(), static_cast<std::uint64_t>(kOldestReport.count())));
      JobActions actions =
          host_.job()->on_iteration(from, Epoch(report.epoch()), iteration(report.iteration()),
                                    report.loss(), now, Milliseconds(age));
      if (host_.job()->view().training.advances() != advances)
        membership_.job_advanced(host_.job()->view().training.needed_to_advance(), now);
      return actions;
    }
    case v1::NodeMessage::kTest: {
      const v1::TestReport& report = message.test();
      return host_.job()->on_test(
          from, Epoch(report.epoch()), iteration(report.iteration()),
          {.loss_sum = report.loss_sum(), .correct = report.correct(), .samples = report.samples()},
          now);
    }
    case v1::NodeMessage::kFinished:
      return host_.job()->on_finished(from, Epoch(message.finished().epoch()), now);
    case v1::NodeMessage::kModel:
      return host_.job()->on_model_announced(from, Epoch(message.model().epoch()),
                                             message.model().sha256(), now);
    case v1::NodeMessage::kFailed:
      return host_.job()->on_failed(
          from, Epoch(message.failed().epoch()), one_line(message.failed().reason()),
          to_failure_kind(message.failed().failure()), now, message.failed().unreachable());
    case v1::NodeMessage::kHalted:
      return host_.job()->on_halted(from, Epoch(message.halted().epoch()),
                                    {.oldest = iteration(message.halted().oldest()),
                                     .newest = iteration(message.halted().newest())},
                                    now);
    case v1::NodeMessage::kCheckpoint: {
      const v1::CheckpointReport& report = message.checkpoint();
      constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 50;
      return host_.job()->on_checkpoint_report(
          from, Epoch(report.epoch()),
          {.server = std::nullopt,
           .who = "",
           .iteration = iteration(report.iteration()),
           .stored = report.stored(),
           .missing = missing_part(report),
           .reason = one_line(report.reason()),
           .bytes = static_cast<std::int64_t>(std::min(report.bytes(), kMaxBytes)),
           .seconds = std::isfinite(report.seconds()) ? std::max(report.seconds(), 0.0) : 0.0},
          std::chrono::duration_cast<std::chrono::seconds>(context_.clock->unix_time()).count(),
          now);
    }
    default:
      return {CountRefusal{Refusal::kMalformed, "a message that does not belong to a job"}};
  }
}

void Cluster::handle_heartbeat(NodeId from, const v1::Heartbeat& heartbeat) {
  if (heartbeat.has_load() && !watch_.take_load(from, heartbeat.load())) {
    watch_.refuse(Refusal::kMalformed,
                  absl::StrCat("the load of ", sender_text(membership_, from)));
  }
  watch_.take_counters(from, heartbeat);
  watch_.take_refusals(from, heartbeat);
  if (host_.job() && !host_.job()->ended()) {
    host_.job()->on_awaited(from, awaited_from(heartbeat), context_.now());
  }
  if (heartbeat.layers().empty() || !watch_.has_traffic() || !host_.job() || host_.job()->ended())
    return;
  const bool is_worker =
      std::ranges::any_of(host_.job()->view().roster.workers,
                          [from](const Participant& p) { return p.node.id == from; });
  if (!is_worker) return;
  host_.job()->on_batches(from, heartbeat.batches(), context_.now());
  if (const std::string wrong = watch_.take_traffic(from, heartbeat); !wrong.empty()) {
    watch_.refuse(Refusal::kMalformed,
                  absl::StrCat(wrong, " from ", sender_text(membership_, from)));
  }
}

void Cluster::count_refusal(Refusal refusal, const std::string& text) {
  MutexLock lock(context_.mutex);
  watch_.refuse(refusal, text);
}

// ---- traces ----

absl::Status Cluster::begin_trace(const v1::TraceRequest& request,
                                  const std::shared_ptr<TraceSink>& sink) {
  MutexLock lock(context_.mutex);
  return traces_.begin(request, sink, host_.job());
}

void Cluster::on_trace_written(const TraceSink* sink) {
  MutexLock lock(context_.mutex);
  traces_.on_written(sink);
}

void Cluster::on_trace_cancelled(const TraceSink* sink) {
  MutexLock lock(context_.mutex);
  traces_.on_cancelled(sink);
}

// ---- the model ----

absl::StatusOr<Cluster::Upload> Cluster::begin_upload(std::uint64_t epoch,
                                                      std::uint64_t total_bytes,
                                                      const std::string& sha256) {
  if (sha256.size() != kSha256Bytes) {
    return absl::InvalidArgumentError("the first part of a model has its SHA-256");
  }
  Upload upload{.epoch = epoch,
                .sha256 = sha256,
                .directory = nullptr,
                .file = nullptr,
                .check_header = nullptr};
  {
    MutexLock lock(context_.mutex);
    if (!host_.job()) return absl::FailedPreconditionError("there is no job to upload a model for");
    POSEIDON_RETURN_IF_ERROR(host_.job()->view().ending.accepts_model(Epoch(epoch), sha256));
    const absl::Status begun = uploads_.begin(epoch, total_bytes, *host_.job()->view().run.plan);
    if (absl::IsUnavailable(begun)) {
      watch_.refuse(Refusal::kDuplicate, absl::StrCat("another model of epoch ", epoch));
    }
    POSEIDON_RETURN_IF_ERROR(begun);
    upload.directory = output_.shared();
    upload.check_header = host_.job()->description().check_model;
    host_.job()->on_model_offered(context_.now());
  }
  absl::StatusOr<std::unique_ptr<ModelFile>> file = upload.directory->receive_model(total_bytes);
  if (!file.ok()) {
    const absl::Status status = worth_another_try(file.status());
    end_upload(epoch, status);
    return status;
  }
  upload.file = *std::move(file);
  return upload;
}

absl::Status Cluster::commit_upload(Upload& upload) {
  POSEIDON_RETURN_IF_ERROR(
      worth_another_try(upload.file->check(upload.sha256, upload.check_header)));
  {
    MutexLock lock(context_.mutex);
    POSEIDON_RETURN_IF_ERROR(
        host_.job()->view().ending.accepts_model(Epoch(upload.epoch), upload.sha256));
  }
  return worth_another_try(upload.file->commit());
}

void Cluster::end_upload(std::uint64_t epoch, const absl::Status& status) {
  MutexLock lock(context_.mutex);
  if (const auto alarm = uploads_.end(epoch, status)) watch_.note(EventKind::kAlarm, *alarm);
  if (status.ok() && host_.job())
    host_.apply(host_.job()->on_model_stored(Epoch(epoch), context_.now()));
}

// ---- operators ----

absl::StatusOr<v1::SubmitResponse> Cluster::submit(const v1::SubmitRequest& request) {
  return submissions_.submit(request, std::nullopt);
}

absl::StatusOr<v1::DeclareResponse> Cluster::declare(const v1::DeclareRequest& request) {
  return submissions_.declare(request);
}

absl::StatusOr<v1::ListCheckpointsResponse> Cluster::list_checkpoints(
    const v1::ListCheckpointsRequest& request) {
  return checkpoint_calls_.list(request);
}

absl::StatusOr<v1::RequestCheckpointResponse> Cluster::request_checkpoint(
    const v1::RequestCheckpointRequest& request) {
  return checkpoint_calls_.request(request);
}

absl::StatusOr<v1::LocateCheckpointResponse> Cluster::locate_checkpoint(
    const v1::LocateCheckpointRequest& request) {
  return checkpoint_calls_.locate(request);
}

absl::StatusOr<v1::SubmitResponse> Cluster::restore_checkpoint(
    const v1::RestoreCheckpointRequest& request) {
  return checkpoint_calls_.restore(request);
}

absl::StatusOr<v1::RemoveCheckpointsResponse> Cluster::remove_checkpoints(
    const v1::RemoveCheckpointsRequest& request) {
  return checkpoint_calls_.remove(request);
}

absl::StatusOr<v1::EndJobResponse> Cluster::end_job(const v1::EndJobRequest& request) {
  MutexLock lock(context_.mutex);
  if (context_.shutting_down) return absl::UnavailableError("the coordinator is stopping");
  if (!host_.is_active()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no job is active: there is nothing to stop",
                     host_.job() ? absl::StrCat("; ", host_.text()) : ""));
  }
  const JobDescription& description = host_.job()->description();
  if (!request.job_id().empty() && request.job_id() != description.id) {
    return absl::FailedPreconditionError(absl::StrCat(host_.text(), ", and job ",
                                                      printable(request.job_id()),
                                                      " is not active: nothing is done"));
  }
  host_.apply(host_.job()->stop("an operator stopped it (poseidon stop)",
                                std::chrono::seconds(request.checkpoint_within_s()),
                                context_.now()));
  v1::EndJobResponse out;
  out.set_job_id(description.id);
  out.set_run_directory(description.run_directory);
  out.set_waits(!host_.job()->ended());
  return out;
}

absl::StatusOr<v1::DrainNodeResponse> Cluster::drain_node(const v1::DrainNodeRequest& request) {
  MutexLock lock(context_.mutex);
  if (context_.shutting_down) return absl::UnavailableError("the coordinator is stopping");
  return leaving_.drain(request);
}

absl::StatusOr<v1::GetStatusResponse> Cluster::status(const v1::GetStatusRequest& /*request*/,
                                                      const std::string& asker) {
  MutexLock lock(context_.mutex);
  clients_.on_poll(asker, host_.job() != nullptr && host_.job()->ended() && output_.is_closed(),
                   context_.now());
  return report_.now(returns_.last_job(), vouched_for_);
}

// ---- being watched ----

CoordinatorFigures Cluster::figures() {
  MutexLock lock(context_.mutex);
  return report_.figures(vouched_for_);
}

StatusView Cluster::view() {
  MutexLock lock(context_.mutex);
  return {.status = report_.now(returns_.last_job(), vouched_for_),
          .curve = watch_.curve(),
          .events = watch_.events().all()};
}

void Cluster::set_metrics_address(const std::string& address, bool has_tls) {
  MutexLock lock(context_.mutex);
  targets_.set_own(address, has_tls);
  targets_.update(membership_.nodes());
}

// ---- time and end ----

void Cluster::tick() {
  MutexLock lock(context_.mutex);
  const Nanoseconds now = context_.now();
  host_.extend_deadlines(now);  // before anything is judged by how long it took
  membership_.set_job(host_.nodes());
  const std::vector<NodeId> silent =
      membership_.vouched_for(context_.options.membership.lease, now);
  if (!silent.empty() && host_.job() && host_.job()->view().training.others_have_finished(silent))
    membership_.await(silent);
  const bool was_cut_off = membership_.isolated_since().has_value();
  for (const Departure& departure : membership_.expire(now)) {
    host_.depart(departure, absl::AbortedError(absl::StrCat("this node ", departure.reason)));
  }
  if (!was_cut_off && membership_.isolated_since()) {
    watch_.note(
        EventKind::kAlarm,
        "no message from any node: is this coordinator cut off? No node is given up meanwhile");
  }
  if (!membership_.isolated_since()) tell_who_is_vouched_for(now);
  for (NodeLink* link : streams_.unjoined_since_before(now - context_.options.membership.lease)) {
    watch_.refuse(Refusal::kNotJoined, absl::StrCat("no Join from ", link->peer_host()));
    streams_.close(link, absl::DeadlineExceededError("no Join within the lease"));
  }
  checkpoints_.remove_due();
  if (targets_.wants_retry()) targets_.update(membership_.nodes());
  probes_.tick(membership_.nodes(), now);
  traces_.tick(host_.job());
  leaving_.tick();
  const bool is_heard = host_.extend_deadlines(now);
  if (!is_heard || !host_.job() || host_.job()->ended()) return;
  host_.apply(host_.job()->tick(now));
  watch_drift(now);
}

/// Cut off from us alone. Not after one lease: when a node dies while the job trains, the iteration
/// in flight still completes with its gradient, which looks like a sign of life.
void Cluster::tell_who_is_vouched_for(Nanoseconds now) {
  const std::vector<NodeId> nodes =
      membership_.vouched_for(2 * context_.options.membership.lease, now);
  const std::set<NodeId> before = std::exchange(vouched_for_, {nodes.begin(), nodes.end()});
  for (const NodeId id : before) {  // its stream ended without a goodbye
    if (membership_.find(id) != nullptr && !streams_.has_stream(id)) vouched_for_.insert(id);
  }
  for (const NodeId id : nodes) {
    if (before.contains(id)) continue;
    watch_.note(
        EventKind::kAlarm,
        absl::StrFormat("%s (node %d) sends no messages, but the job trains with it: only its "
                        "connection to the coordinator is cut; it keeps its place for %.0f s",
                        node_text(*membership_.find(id)), id.value(),
                        seconds(context_.options.membership.vouched_limit)));
  }
  for (const NodeId id : before) {
    const NodeInfo* node = vouched_for_.contains(id) ? nullptr : membership_.find(id);
    if (node == nullptr) continue;
    watch_.note(EventKind::kJoin,
                absl::StrFormat("%s (node %d) answers again", node_text(*node), id.value()));
  }
}

void Cluster::watch_drift(Nanoseconds now) {
  const std::vector<MeasuredLayer> measured = watch_.due_layer_times(now);
  if (measured.empty()) return;
  std::vector<LayerTimes> times;
  for (std::size_t l = 0; l < measured.size(); ++l) {
    times.push_back({.name = host_.job()->view().run.plan->layers[l].name,
                     .forward_s = measured[l].forward_s,
                     .backward_s = measured[l].backward_s});
  }
  host_.apply(host_.job()->on_measured_times(times, now));
}

/// Events of the job are still handled meanwhile; its deadlines are not, because there is no tick.
void Cluster::end_before_shutdown(const std::string& reason) {
  if (!host_.job() || host_.job()->ended()) return;
  const std::string why = absl::StrCat("the coordinator was stopped (", reason, ")");
  const Nanoseconds patience = context_.options.shutdown_checkpoint_timeout;
  host_.apply(host_.job()->stop(why, patience, context_.now()));
  host_.wait_for_nodes(context_.mutex, patience, context_.options.membership.lease,
                       [this] { return host_.job()->ended(); });
  host_.apply(host_.job()->stop(why, Nanoseconds::zero(), context_.now()));
}

/// Nodes may be stopped, too, before the next process comes.
void Cluster::save_before_shutdown() {
  if (!host_.job() || host_.job()->ended()) return;
  host_.job()->drop_change();  // for which nodes would be stopped that are to train on
  const bool has_trained_on =
      host_.job()->progress(context_.now()).completed > host_.job()->view().run.first_iteration;
  const Nanoseconds patience = context_.options.shutdown_checkpoint_timeout;
  if (patience > Nanoseconds::zero() && has_trained_on) {
    if (absl::StatusOr<JobActions> asked = host_.job()->save_checkpoint(context_.now());
        asked.ok()) {
      host_.apply(*asked);
      host_.wait_for_nodes(context_.mutex, patience, context_.options.membership.lease, [this] {
        return host_.job()->state() != JobState::kRunning ||
               !host_.job()->view().checkpoints.asked_for();
      });
    }
  }
  if (host_.job()->ended()) return;
  watch_.note(
      EventKind::kJob,
      absl::StrCat(
          host_.text(),
          host_.job()->state() == JobState::kRunning ? "; its nodes train on" : "; its nodes wait",
          ", and the next coordinator with this state directory continues the job"));
}

void Cluster::shutdown(const std::string& reason, std::optional<OnShutdown> how) {
  MutexLock lock(context_.mutex);
  context_.shutting_down = true;
  const bool was_told_to_end = host_.job() && host_.job()->view().ending.is_stopping();
  if (how.value_or(context_.options.on_shutdown) == OnShutdown::kKeepJob && !was_told_to_end) {
    save_before_shutdown();
  } else {
    end_before_shutdown(reason);
  }
  // Connected servers forget the checkpoints whose manifests are removed.
  host_.wait_until(context_.mutex, kSettleTimeout, [this] { return checkpoints_.is_settled(); });
  traces_.end();
  streams_.close_all(absl::UnavailableError(absl::StrCat("the coordinator stops (", reason, ")")));
  if (!host_.job()) return;
  if (!host_.job()->ended()) output_.files().close(RunEnd::kLeft);
  output_.wait_until_closed(context_.mutex, kFilesTimeout);
  if (host_.job()->ended()) clients_.wait_until_told(context_.mutex, context_.now());
}

}  // namespace poseidon
