#include "coordinator/cluster/cluster.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/log_limit.h"
#include "common/base/text.h"
#include "coordinator/members/admission.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// Distinct refusal reasons kept per node, and the length of one: a node cannot make us hoard text.
constexpr std::size_t kMaxReasonsPerNode = 64;
constexpr std::size_t kMaxReasonBytes = 64;
/// A report that says it is older can only be wrong: no node waits longer for a coordinator.
constexpr Milliseconds kOldestReport = std::chrono::hours(24 * 365);
/// Room in the model's size for the file's header and for tensors that are no parameters.
constexpr std::uint64_t kModelSlackBytes = 64 << 20;

/// Seconds since the job began: finite, and no more than a lifetime.
bool sensible(double seconds) { return seconds >= 0.0 && seconds <= 1e10; }
bool sensible(const v1::LayerTraffic& layer) {
  return sensible(layer.stall_seconds()) && sensible(layer.forward_seconds()) &&
         sensible(layer.backward_seconds()) && sensible(layer.sync_seconds());
}

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

}  // namespace

Cluster::Cluster(ClusterOptions options, JobResolver resolver,
                 std::unique_ptr<StateDirectory> state, const Clock* clock, ClusterDisk disk)
    : options_(options),
      resolver_(std::move(resolver)),
      state_(std::move(state)),
      clock_(clock),
      membership_(options.membership),
      archive_(state_->path() / "checkpoints"),
      disk_(std::move(disk)) {
  // Where no epoch was ever given, there is no checkpoint; if the folder cannot be made, the first
  // one says so.
  if (state_->is_new()) (void)archive_.create();
  std::vector<std::string> unreadable;
  for (CheckpointManifest& manifest : archive_.load(unreadable)) catalog_.add(std::move(manifest));
  for (const std::string& text : unreadable) {
    spdlog::error("not read as a checkpoint: {}; no part of any is removed from servers",
                  one_line(text));
  }
  knows_all_checkpoints_ = unreadable.empty();
  catalog_.set_unread(std::move(unreadable));
  if (knows_all_checkpoints_) (void)archive_.create();  // earlier versions made no marker
  begun_ = Epoch(state_->last_given());
  if (!catalog_.all().empty()) {
    spdlog::info("{} committed checkpoints, the newest is {}", catalog_.all().size(),
                 snapshot_name(catalog_.all().rbegin()->first));
  }
}

Cluster::~Cluster() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  // These threads call us back: they must end while everything here still lives.
  disk_.background.reset();
  std::shared_ptr<RunFiles> directory;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    directory = std::move(directory_);
  }
  directory.reset();
}

// ---- streams ----

void Cluster::on_open(const std::shared_ptr<NodeLink>& link) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (shutting_down_) {
    link->close(absl::UnavailableError("the coordinator is stopping"));
    return;
  }
  // Twice the members: those that join while the places of others run out.
  if (attached_.size() >= 2 * options_.membership.max_nodes) {
    link->close(absl::ResourceExhaustedError("too many nodes are connected"));
    return;
  }
  attached_[link.get()] = {.link = link, .node = std::nullopt, .opened = clock_->now()};
}

void Cluster::on_message(NodeLink* link, const v1::NodeMessage& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = attached_.find(link);
  if (it == attached_.end()) return;  // closed by us a moment ago
  forgive_job(clock_->now());
  if (!it->second.node) {
    if (message.has_join()) {
      handle_join(link, message.join());
    } else {
      refuse(Refusal::kNotJoined, absl::StrCat("a message before Join from ", link->peer_host()));
      link->close(absl::InvalidArgumentError("the first message must be Join"));
      attached_.erase(link);
    }
    return;
  }
  const NodeId from = *it->second.node;
  membership_.heard_from(from, clock_->now());
  handle_member(from, message);
}

void Cluster::on_end(NodeLink* link, const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = attached_.find(link);
  if (it == attached_.end()) return;
  forgive_job(clock_->now());
  const std::optional<NodeId> node = it->second.node;
  if (!node) {
    attached_.erase(it);
    return;
  }
  if (job_ && job_->has_part(*node)) {
    attached_.erase(it);
    let_come_back(*node, reason);
  } else if (const auto gone = membership_.leave(*node, reason, clock_->now())) {
    depart(*gone, absl::OkStatus());
  }
}

void Cluster::handle_join(NodeLink* link, const v1::Join& join) {
  absl::StatusOr<NodeInfo> node = admit(join, link->peer_host());
  if (node.ok() && is_beyond_epoch(*node, join)) end_outdated_epoch(*node, join);
  if (node.ok() && join.has_resume() && take_back(link, *node, join.resume())) return;
  if (node.ok() && !state_->skip_epochs(node->newest_epoch.value())) {
    node = absl::InvalidArgumentError(
        absl::StrCat("Join.newest_epoch is ", join.newest_epoch(),
                     ", far beyond this coordinator's: give the server an empty --data-dir"));
  }
  if (node.ok()) make_room(*node, join);
  absl::StatusOr<NodeId> id = node.ok() ? membership_.join(*node, clock_->now()) : node.status();
  if (!id.ok()) {
    refuse(absl::IsFailedPrecondition(id.status()) ? Refusal::kVersion : Refusal::kMalformed,
           absl::StrCat("Join from ", link->peer_host(), ": ", id.status().message()));
    link->close(id.status());
    attached_.erase(link);
    return;
  }
  attached_[link].node = *id;
  link->send(joined_message(*id, join_note(node->role)));
  const NodeInfo* member = membership_.find(*id);
  if (member->role == NodeRole::kServer) send_keep(*member);
  note(EventKind::kJoin,
       absl::StrCat(node_text(*member), " joined as node ", id->value(), " (",
                    member->device.empty() ? "" : absl::StrCat("device ", member->device, ", "),
                    "version ",
                    member->software_version.empty() ? "unknown" : member->software_version, ")"));
  members_changed();
}

std::string Cluster::join_note(NodeRole role) const {
  if (!job_ || job_->ended() || job_->state() == JobState::kWaiting) return "";
  return absl::StrFormat(
      "job %s is %s with %d workers and %d servers; this %s %s", job_->description().id,
      job_state_name(job_->state()), job_->workers().size(), job_->servers().size(),
      role_name(role),
      role == NodeRole::kWorker
          ? "is taken in where the job takes more workers, else it stands by for one that is lost"
          : "stands by for one that is lost, and for the next job");
}

void Cluster::handle_member(NodeId from, const v1::NodeMessage& message) {
  switch (message.body_case()) {
    case v1::NodeMessage::kHeartbeat:
      handle_heartbeat(from, message.heartbeat());
      return;
    case v1::NodeMessage::kLeave: {
      const std::string reason = one_line(message.leave().reason());
      if (const auto gone =
              membership_.leave(from, absl::StrCat("left (", reason, ")"), clock_->now())) {
        depart(*gone, absl::OkStatus(), DepartureKind::kLeft);
      }
      return;
    }
    case v1::NodeMessage::kJoin:
      refuse(Refusal::kDuplicate, absl::StrCat("a second Join from ", sender_text(from)));
      return;
    case v1::NodeMessage::BODY_NOT_SET:
      refuse(Refusal::kMalformed, absl::StrCat("an empty message from ", sender_text(from)));
      return;
    case v1::NodeMessage::kClock:
    case v1::NodeMessage::kTrace:
      handle_trace(from, message);
      return;
    default:
      break;
  }
  if (!job_) {
    refuse(Refusal::kWrongState,
           absl::StrCat("a job message from ", sender_text(from), ", but there is no job"));
    return;
  }
  JobActions actions = handle_report(from, message);
  for (JobAction& action : actions) {
    // A job knows nobody else than its own nodes.
    if (auto* refusal = std::get_if<CountRefusal>(&action)) {
      absl::StrAppend(&refusal->text, " (sent by ", sender_text(from), ")");
    }
  }
  apply(actions);
}

JobActions Cluster::handle_report(NodeId from, const v1::NodeMessage& message) {
  const Nanoseconds now = clock_->now();
  // Beyond int64 it can only be wrong; as -1 it is refused like any wrong iteration.
  const auto iteration = [](std::uint64_t value) {
    return value > static_cast<std::uint64_t>(INT64_MAX) ? Iteration{-1}
                                                         : static_cast<Iteration>(value);
  };
  switch (message.body_case()) {
    case v1::NodeMessage::kCalibration:
      return job_->on_calibration(from, Epoch(message.calibration().epoch()),
                                  to_answer(message.calibration()), now);
    case v1::NodeMessage::kReady:
      return job_->on_ready(from, Epoch(message.ready().epoch()), now,
                            data_identity_of(message.ready()));
    case v1::NodeMessage::kIteration: {
      const v1::IterationReport& report = message.iteration();
      const std::uint64_t advances = job_->advances();
      const auto age = static_cast<Milliseconds::rep>(
          std::min(report.age_ms(), static_cast<std::uint64_t>(kOldestReport.count())));
      JobActions actions =
          job_->on_iteration(from, Epoch(report.epoch()), iteration(report.iteration()),
                             report.loss(), now, Milliseconds(age));
      if (job_->advances() != advances) membership_.job_advanced(job_->needed_to_advance(), now);
      return actions;
    }
    case v1::NodeMessage::kTest: {
      const v1::TestReport& report = message.test();
      return job_->on_test(
          from, Epoch(report.epoch()), iteration(report.iteration()),
          {.loss_sum = report.loss_sum(), .correct = report.correct(), .samples = report.samples()},
          now);
    }
    case v1::NodeMessage::kFinished:
      return job_->on_finished(from, Epoch(message.finished().epoch()), now);
    case v1::NodeMessage::kFailed:
      return job_->on_failed(
          from, Epoch(message.failed().epoch()), one_line(message.failed().reason()),
          to_failure_kind(message.failed().failure()), now, message.failed().unreachable());
    case v1::NodeMessage::kHalted:
      return job_->on_halted(from, Epoch(message.halted().epoch()),
                             {.oldest = iteration(message.halted().oldest()),
                              .newest = iteration(message.halted().newest())},
                             now);
    case v1::NodeMessage::kCheckpoint: {
      const v1::CheckpointReport& report = message.checkpoint();
      constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 50;
      return job_->on_checkpoint_report(
          from, Epoch(report.epoch()),
          {.server = std::nullopt,
           .who = "",
           .iteration = iteration(report.iteration()),
           .stored = report.stored(),
           .missing = missing_part(report),
           .reason = one_line(report.reason()),
           .bytes = static_cast<std::int64_t>(std::min(report.bytes(), kMaxBytes)),
           .seconds = std::isfinite(report.seconds()) ? std::max(report.seconds(), 0.0) : 0.0},
          std::chrono::duration_cast<std::chrono::seconds>(clock_->unix_time()).count(), now);
    }
    default:
      return {CountRefusal{Refusal::kMalformed, "a message that is none of a job's"}};
  }
}

void Cluster::handle_heartbeat(NodeId from, const v1::Heartbeat& heartbeat) {
  if (heartbeat.has_load()) take_load(from, heartbeat.load());
  counters_.take(from, heartbeat);
  auto& totals = node_refusals_[from];
  for (const v1::RefusedCount& count : heartbeat.refused()) {
    const std::string reason(utf8_prefix(one_line(count.reason()), kMaxReasonBytes));
    if (totals.size() >= kMaxReasonsPerNode && totals.count(reason) == 0) continue;
    totals[reason] = count.count();
  }
  if (heartbeat.layers().empty() || !traffic_ || !job_ || job_->ended()) return;
  const auto& workers = job_->workers();
  const bool is_worker = std::any_of(workers.begin(), workers.end(),
                                     [from](const Participant& p) { return p.node.id == from; });
  if (!is_worker) return;
  job_->on_batches(from, heartbeat.batches(), clock_->now());
  if (!sensible(heartbeat.data_stall_seconds())) {
    refuse(Refusal::kMalformed,
           absl::StrCat("a wait for samples of ", heartbeat.data_stall_seconds(), " s from ",
                        sender_text(from)));
    return;
  }
  std::vector<LayerTotals> layers(traffic_->layers());
  for (const v1::LayerTraffic& layer : heartbeat.layers()) {
    if (layer.layer() >= layers.size() || !sensible(layer)) {
      refuse(Refusal::kMalformed, absl::StrCat("traffic of layer ", layer.layer(), " of ",
                                               layers.size(), " from ", sender_text(from)));
      return;
    }
    layers[layer.layer()] = {.sent_bytes = layer.sent_bytes(),
                             .received_bytes = layer.received_bytes(),
                             .stall_seconds = layer.stall_seconds(),
                             .forward_seconds = layer.forward_seconds(),
                             .backward_seconds = layer.backward_seconds(),
                             .passes = layer.passes(),
                             .sync_seconds = layer.sync_seconds(),
                             .syncs = layer.syncs()};
  }
  traffic_->add(from,
                {.layers = std::move(layers),
                 .data_stall_seconds = heartbeat.data_stall_seconds(),
                 .corrupt_samples = heartbeat.corrupt_samples()},
                clock_->now());
}

// ---- members ----

NodeLink* Cluster::link_of(NodeId node) const {
  for (const auto& [link, attached] : attached_) {
    if (attached.node == node) return link;
  }
  return nullptr;
}

void Cluster::depart(const Departure& departure, const absl::Status& status, DepartureKind kind) {
  const NodeId id = departure.node.id;
  ++counts_.departures[departure.node.role][static_cast<std::size_t>(kind)];
  note(kind == DepartureKind::kLost ? EventKind::kLoss : EventKind::kLeave,
       absl::StrCat(node_text(departure.node), " (node ", id.value(), ") is gone: it ",
                    departure.reason));
  if (NodeLink* link = link_of(id)) {
    link->close(status);
    attached_.erase(link);
  }
  if (traffic_) traffic_->remove(id);
  loads_.remove(id);
  counters_.remove(id);
  trace_lost(id, absl::StrCat("is gone (it ", departure.reason, ")"));
  if (const auto it = node_refusals_.find(id); it != node_refusals_.end()) {
    for (const auto& [reason, count] : it->second) {
      if (departed_refusals_.size() < kMaxReasonsPerNode || departed_refusals_.count(reason) > 0) {
        departed_refusals_[reason] += count;
      }
    }
    node_refusals_.erase(it);
  }
  if (job_) apply(job_->on_departure(departure, clock_->now()));
  members_changed();
}

void Cluster::members_changed() {
  write_targets();
  forgive_job(clock_->now());  // a newcomer may have ended that we were cut off
  if (job_ && !job_->ended()) apply(job_->on_members(membership_.nodes(), clock_->now()));
}

// ---- actions ----

void Cluster::refuse(Refusal refusal, const std::string& text) {
  const std::uint64_t n = ++own_refusals_[refusal_name(refusal)];
  const bool is_shown = !is_harmless(refusal) && is_logged_refusal(n);
  spdlog::log(is_shown ? spdlog::level::warn : spdlog::level::debug,
              "refused a message ({}, number {}): {}", refusal_name(refusal), n, one_line(text));
}

void Cluster::count_refusal(Refusal refusal, const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  refuse(refusal, text);
}

std::string Cluster::sender_text(NodeId from) const {
  const NodeInfo* node = membership_.find(from);
  return absl::StrCat(node == nullptr ? "" : absl::StrCat(node_text(*node), ", "), "node ",
                      from.value());
}

// ---- the model ----

absl::Status worth_another_try(const absl::Status& status) {
  // What is no fault of the disk: a part that does not fit.
  if (status.ok() || absl::IsInvalidArgument(status)) return status;
  return absl::UnavailableError(absl::StrCat("the model cannot be stored: ", status.message()));
}

absl::StatusOr<Cluster::Upload> Cluster::begin_upload(std::uint64_t epoch,
                                                      std::uint64_t total_bytes) {
  Upload upload;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!job_) return absl::FailedPreconditionError("there is no job that a model could be of");
    POSEIDON_RETURN_IF_ERROR(job_->accepts_model(Epoch(epoch)));
    // One of an epoch that is over may hang for long: it is committed no more.
    if (uploading_ && *uploading_ >= epoch) {
      refuse(Refusal::kDuplicate, absl::StrCat("another model of epoch ", epoch));
      return absl::UnavailableError("another upload of the model is under way");
    }
    std::uint64_t parameters = 0;
    for (const PlanLayer& layer : job_->plan()->layers) {
      parameters += static_cast<std::uint64_t>(layer.parameters);
    }
    // Twice: layers may carry statistics beside their parameters.
    const std::uint64_t limit = 2 * 4 * parameters + kModelSlackBytes;
    if (total_bytes > limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("a model of ", total_bytes, " bytes; this network's has at most ", limit));
    }
    uploading_ = epoch;
    upload.directory = directory_;
    job_->on_model_offered(clock_->now());
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

absl::Status Cluster::may_commit(std::uint64_t epoch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return job_->accepts_model(Epoch(epoch));
}

void Cluster::end_upload(std::uint64_t epoch, const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (uploading_ == epoch) uploading_.reset();
  const std::string why = absl::IsUnavailable(status) ? std::string(status.message()) : "";
  if (std::exchange(model_refused_, why) != why && !why.empty()) {
    note(EventKind::kAlarm, absl::StrCat(why, "; worker 0 keeps it and comes again"));
  }
  if (status.ok() && job_) apply(job_->on_model_stored(Epoch(epoch), clock_->now()));
}

}  // namespace poseidon
