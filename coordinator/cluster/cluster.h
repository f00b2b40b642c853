#pragma once

// The coordinator's whole state behind one mutex: membership, the job, its files, its metrics.
// Before: service.cc (gRPC) hands over messages and ends of streams. After: NodeLink sends, and
// RunDirectory writes.
//
// Who is a member is decided by membership, how the job goes by job_run, who may join by admission.
// Here is decided what takes more than one of them to know, or what is on disk; above all: that
// there is one job at a time (reserve_submission), how an earlier coordinator's job goes on
// (go_on_with), whether a node that joins is of a later epoch than that one's (is_beyond_epoch),
// which times do not count against the job, because the coordinator itself was away or cut off
// (forgive_job), how large a model may be that is uploaded (begin_upload), and what becomes of the
// job when this process is stopped (shutdown).
//
// Concurrency contract
//  1. Every public method may be called from any thread; none blocks on network or disk, except
//     submit and restore_checkpoint (create the run directory), which hold no lock while they do,
//     and shutdown. The constructor reads the checkpoints' manifests.
//  2. NodeLink is called with the mutex held and must neither block nor call back.
//  3. RunDirectory's writer thread and the disk thread call back into us without locks.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/background.h"
#include "coordinator/job/job_run.h"
#include "coordinator/members/counter_book.h"
#include "coordinator/members/load_monitor.h"
#include "coordinator/members/membership.h"
#include "coordinator/planning/job_resolver.h"
#include "coordinator/records/checkpoint_archive.h"
#include "coordinator/records/checkpoint_catalog.h"
#include "coordinator/records/durable_job.h"
#include "coordinator/records/loss_curve.h"
#include "coordinator/records/run_directory.h"
#include "coordinator/records/state_directory.h"
#include "coordinator/watch/event_list.h"
#include "coordinator/watch/metrics.h"
#include "coordinator/watch/status_site.h"
#include "coordinator/watch/trace_run.h"
#include "coordinator/watch/trace_sink.h"
#include "coordinator/watch/traffic.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// The coordinator's end of one Attach stream.
class NodeLink {
 public:
  virtual ~NodeLink() = default;
  /// Queues; false when the queue is full or the stream has ended. Never blocks.
  virtual bool send(const v1::CoordinatorMessage& message) = 0;
  /// Ends the stream with this status after what is queued. Idempotent.
  virtual void close(const absl::Status& status) = 0;
  /// The host of the other side; "" when it cannot be told.
  virtual std::string peer_host() const = 0;
};

/// What shutdown does with the job: ends it, or leaves it to its nodes, which train on, and to the
/// next process with this state directory.
enum class OnShutdown { kEndJob, kKeepJob };

struct ClusterOptions {
  MembershipOptions membership;
  JobRunOptions job;
  std::size_t max_job_bytes = 4 << 20;  ///< of a job's text, its network inline
  OnShutdown on_shutdown = OnShutdown::kEndJob;
  /// How long shutdown waits for a checkpoint of the job that trains; 0: takes none.
  Nanoseconds shutdown_checkpoint_timeout = std::chrono::seconds(10);
  /// How much longer at most shutdown answers for those who follow a job of whose end they have not
  /// heard: who has asked so recently.
  Nanoseconds last_words{0};
};

/// How the disk is written to, besides the state directory; simulations have their own.
struct ClusterDisk {
  std::unique_ptr<Background> background = std::make_unique<BackgroundThread>();
  std::function<absl::StatusOr<std::unique_ptr<RunFiles>>(
      const std::filesystem::path& path, RunDirectory::Begin begin, RunDirectory::Events events)>
      open = RunDirectory::open;
  std::function<absl::StatusOr<std::unique_ptr<RunFiles>>(
      const std::filesystem::path& path, RunDirectory::Events events, MetricsProgress& progress)>
      reopen = RunDirectory::reopen;
};

/// Of storing a model. A full disk may have room again, a folder come back, and nobody but worker 0
/// has the model: then UNAVAILABLE, and it comes again for as long as it waits for a coordinator. A
/// part that does not fit is refused as it is (INVALID_ARGUMENT).
absl::Status worth_another_try(const absl::Status& status);

class Cluster {
 public:
  /// `clock` outlives it.
  Cluster(ClusterOptions options, JobResolver resolver, std::unique_ptr<StateDirectory> state,
          const Clock* clock, ClusterDisk disk = {});
  ~Cluster();

  /// Goes on with the job that an earlier coordinator had in this state directory. Before streams
  /// and calls. A record that makes no sense is logged, and set aside. FAILED_PRECONDITION: the
  /// job cannot be gone on with as things are (its run directory is not there, the disk is full):
  /// to be put right, or to be given up, by the operator and nobody else.
  absl::Status restore();

  // ---- streams of nodes ----
  void on_open(const std::shared_ptr<NodeLink>& link);
  void on_message(NodeLink* link, const v1::NodeMessage& message);
  /// The node ended the stream or it broke.
  void on_end(NodeLink* link, const std::string& reason);

  // ---- calls of operators, who speak our protocol version ----
  absl::StatusOr<v1::SubmitResponse> submit(const v1::SubmitRequest& request);
  /// `asker`: whose further questions are known by it.
  absl::StatusOr<v1::GetStatusResponse> status(const v1::GetStatusRequest& request,
                                               const std::string& asker = "");
  absl::StatusOr<v1::ListCheckpointsResponse> list_checkpoints(
      const v1::ListCheckpointsRequest& request);
  absl::StatusOr<v1::RequestCheckpointResponse> request_checkpoint(
      const v1::RequestCheckpointRequest& request);
  absl::StatusOr<v1::LocateCheckpointResponse> locate_checkpoint(
      const v1::LocateCheckpointRequest& request);
  absl::StatusOr<v1::SubmitResponse> restore_checkpoint(
      const v1::RestoreCheckpointRequest& request);
  absl::StatusOr<v1::RemoveCheckpointsResponse> remove_checkpoints(
      const v1::RemoveCheckpointsRequest& request);
  absl::StatusOr<v1::EndJobResponse> end_job(const v1::EndJobRequest& request);

  /// A message that was turned away before it came here; `text` says what and whose.
  void count_refusal(Refusal refusal, const std::string& text);

  // ---- traces (cluster_trace.cc) ----
  /// OK: all else, and the end, goes to the sink.
  absl::Status begin_trace(const v1::TraceRequest& request, const std::shared_ptr<TraceSink>& sink);
  void on_trace_written(const TraceSink* sink);
  void on_trace_cancelled(const TraceSink* sink);

  // ---- the model ----
  /// A place for the model of this epoch; holds the run directory alive. Follow with end_upload.
  struct Upload {
    std::shared_ptr<RunFiles> directory;
    std::unique_ptr<ModelFile> file;
  };
  absl::StatusOr<Upload> begin_upload(std::uint64_t epoch, std::uint64_t total_bytes);
  /// Whether all of it may be put in place now.
  absl::Status may_commit(std::uint64_t epoch);
  void end_upload(std::uint64_t epoch, const absl::Status& status);

  // ---- time and end ----
  /// Leases and deadlines; call several times a second.
  void tick();
  /// Saves a checkpoint of the job that trains, ends it or leaves it, ends every stream, and waits
  /// (seconds) for the files to be written, and for those who follow a job that ends to have heard
  /// of it.
  /// `how`: instead of options.on_shutdown.
  void shutdown(const std::string& reason, std::optional<OnShutdown> how = std::nullopt);

  // ---- being watched (cluster_metrics.cc) ----
  CoordinatorFigures figures();
  StatusView view();
  /// HOST:PORT of the coordinator's own metrics, "" for none. From now on the state directory has
  /// prometheus-targets.json.
  /// `has_tls`: pages of all daemons speak it where others reach them.
  void set_metrics_address(const std::string& address, bool has_tls);

 private:
  struct Attached {
    std::shared_ptr<NodeLink> link;
    std::optional<NodeId> node;  ///< nothing before Join
    Nanoseconds opened{0};
  };

  void handle_join(NodeLink* link, const v1::Join& join);
  bool take_back(NodeLink* link, NodeInfo node, const v1::Resume& resume);
  bool is_beyond_epoch(const NodeInfo& node, const v1::Join& join) const;
  void end_outdated_epoch(const NodeInfo& node, const v1::Join& join);
  void make_room(const NodeInfo& node, const v1::Join& join);
  void send_stop(const SendStop& stop);
  void let_come_back(NodeId node, const std::string& reason);
  v1::CoordinatorMessage joined_message(NodeId id, const std::string& note) const;
  std::vector<NodeId> nodes_of_job() const;
  void handle_member(NodeId from, const v1::NodeMessage& message);
  JobActions handle_report(NodeId from, const v1::NodeMessage& message);
  void handle_heartbeat(NodeId from, const v1::Heartbeat& heartbeat);
  void apply_trace(TraceActions actions);
  void handle_trace(NodeId from, const v1::NodeMessage& message);
  void trace_lost(NodeId node, const std::string& reason);
  void tick_trace();
  void take_load(NodeId from, const v1::NodeLoad& load);
  void depart(const Departure& departure, const absl::Status& status,
              DepartureKind kind = DepartureKind::kLost);
  void write_targets();
  void write_targets_again();
  void members_changed();
  void apply(const JobActions& actions);
  void apply_one(const JobAction& action);
  v1::CoordinatorMessage calibrate_message(const CalibrationTask& task) const;
  bool send(NodeId node, const v1::CoordinatorMessage& message);
  void send_assignment(const SendAssignment& assignment);
  void send_save(const SendSave& save);
  void take_epoch();
  void forget_parts(const ForgetParts& forget);
  void send_keep(const NodeInfo& server);
  void look_for_unknown_epochs(const NodeInfo& server);
  void write_manifest(const WriteManifest& write);
  void remove_manifest(const CheckpointManifest& manifest);
  void remove_due_checkpoints();
  void end_before_shutdown(const std::string& reason, std::unique_lock<std::mutex>& lock);
  void save_before_shutdown(std::unique_lock<std::mutex>& lock);
  absl::StatusOr<v1::SubmitResponse> begin_job(const v1::SubmitRequest& request,
                                               std::optional<SnapshotId> source);
  absl::Status add_source(SnapshotId source, JobDescription& description);
  bool is_job(const std::string& id) const { return job_ && job_->description().id == id; }
  void after_actions();
  bool forgive_job(Nanoseconds now);
  void tell_who_is_vouched_for(Nanoseconds now);
  void forget_followers(Nanoseconds now);
  void watch_drift(Nanoseconds now);
  void refuse(Refusal refusal, const std::string& text);
  std::string sender_text(NodeId from) const;
  void note(EventKind kind, const std::string& text);
  NodeLink* link_of(NodeId node) const;
  bool job_active() const { return job_ && (!job_->ended() || !files_closed_); }
  std::string job_text() const;
  std::string doubt_about(const std::string& checkpoint_id) const;
  std::string join_note(NodeRole role) const;
  JobDescription describe_job(const v1::SubmitRequest& request, const ResolvedJob& resolved,
                              const std::string& run_directory) const;
  static absl::Status check_counts(const v1::SubmitRequest& request, const ResolvedJob& job,
                                   bool from_checkpoint);
  absl::Status reserve_submission();
  RunDirectory::Events run_directory_events();
  void files_are_closed();
  void install_job(std::unique_ptr<JobRun> job, const v1::SubmitRequest& request,
                   std::shared_ptr<RunFiles> directory, std::optional<MetricsProgress> earlier);
  absl::Status go_on_with(DurableJob record);
  absl::Status wait_again(const DurableJob& record, const v1::SubmitRequest& request,
                          JobDescription description);
  absl::StatusOr<std::vector<CheckpointManifest>> checkpoints_of(const DurableJob& record) const;
  void recall_last_job();
  void record_job();
  std::vector<CheckpointManifest> committed_checkpoints(const std::string& job_id) const;
  v1::GetStatusResponse status_now() const;
  void fill_job(v1::GetStatusResponse& out) const;
  v1::GetStatusResponse outcome() const;
  JobState job_state() const;
  Nanoseconds traffic_until() const;
  void fill_nodes(v1::GetStatusResponse& out) const;
  void fill_layers(v1::GetStatusResponse& out) const;
  void fill_refused(v1::GetStatusResponse& out) const;
  void fill_own_counters(v1::GetStatusResponse& out) const;

  const ClusterOptions options_;
  const JobResolver resolver_;
  const std::unique_ptr<StateDirectory> state_;
  const Clock* const clock_;

  std::mutex mutex_;
  std::condition_variable files_closed_changed_;
  std::condition_variable follower_told_;
  std::condition_variable job_changed_;  ///< after each event of the job
  // Guarded by mutex_.
  std::map<NodeLink*, Attached> attached_;
  Membership membership_;
  std::set<NodeId> vouched_for_;  ///< as of the last tick
  std::unique_ptr<JobRun> job_;
  v1::SubmitRequest submitted_;  ///< the job's
  /// What is, or will be, in the state directory of the job.
  struct Recorded {
    Epoch epoch;
    bool recovers = false, stopped = false, has_checkpoints = false;
    std::vector<NodeId> lost;
    bool operator==(const Recorded&) const = default;
  };
  std::optional<Recorded> recorded_;
  std::pair<Epoch, std::int64_t> trained_since_;  ///< of the record: when its epoch began, Unix ms
  /// As an earlier process left it; told while there is no job_.
  v1::GetStatusResponse last_job_ = status_without_job();
  /// Who asks for the status: when last, and whether the answer was that job_ has ended.
  struct Follower {
    Nanoseconds asked{0};
    bool end_told = false;
  };
  std::map<std::string, Follower> followers_;  ///< of options_.last_words, by asker
  std::optional<SnapshotId> source_;           ///< of job_, also after another coordinator's death
  std::optional<Epoch> resumed_epoch_;  ///< an earlier coordinator's; nothing: job_ is all ours
  std::shared_ptr<RunFiles> directory_;
  bool submitting_ = false;
  std::optional<std::uint64_t> uploading_;  ///< the epoch whose model is on its way
  std::string model_refused_;               ///< why the last one was, if it will come again
  std::string lines_refused_;               ///< why the disk of directory_ does not take them
  std::string record_refused_;              ///< why the state directory does not take its record
  std::string lines_lost_;                  ///< likewise, when the job had ended and they waited
  Nanoseconds last_seen_{0};                ///< when this process last did anything
  bool is_cut_off_ = false;                 ///< then
  Nanoseconds forgiven_until_{0};           ///< of what came before the job counts no time twice
  bool shutting_down_ = false;
  bool ending_ = false;  ///< in the destructor: nothing new begins
  bool files_closing_ = false;
  bool files_closed_ = true;
  Iteration counted_iterations_ = 0;  ///< of the job, already in counts_
  ClusterCounts counts_;              ///< of jobs: those before job_
  std::string metrics_address_;
  bool pages_have_tls_ = false;
  std::string targets_;              ///< as last written, or about to be; "": not as they are
  bool targets_are_written_ = true;  ///< the last attempt found room
  Nanoseconds targets_tried_{0};     ///< when it did not
  std::unique_ptr<TrafficMonitor> traffic_;
  LossCurve curve_;   ///< of the job
  EventList events_;  ///< of the cluster
  LoadMonitor loads_;
  CounterBook counters_;
  std::unique_ptr<TraceRun> trace_;  ///< while one is being taken ...
  Epoch trace_epoch_;                ///< ... of this epoch
  std::shared_ptr<TraceSink> trace_sink_;
  Nanoseconds drift_looked_{0};
  /// Of a job that is done: told once its files are on disk. Should this process die before, the
  /// nodes still have what is missing there.
  std::vector<SendStop> stops_after_files_;
  std::vector<NodeId> undeliverable_;  ///< nodes whose queue was full; dropped after the actions
  std::map<std::string, std::uint64_t> own_refusals_;
  std::map<NodeId, std::map<std::string, std::uint64_t>> node_refusals_;  ///< running totals
  std::map<std::string, std::uint64_t> departed_refusals_;  ///< of nodes that are gone
  CheckpointCatalog catalog_;
  /// Manifests that are being written or taken away: what they name stays.
  std::set<SnapshotId> settling_;
  /// Every manifest on disk could be read, and no server has checkpoints of epochs that this state
  /// directory has not begun.
  bool knows_all_checkpoints_ = true;
  Epoch begun_;  ///< the last one that was, by this process or, as far as it knows, an earlier one
  CheckpointArchive archive_;
  ClusterDisk disk_;  ///< its background runs what must not block under the mutex
};

}  // namespace poseidon
