#pragma once

// The coordinator's whole state behind one mutex: takes messages and calls, and passes each to the
// part that owns the state concerned.
//
// Called by: service.cc (gRPC) with messages and ends of streams, and its timer. Calls: the parts.
//
// The parts, lowest first. None reaches into another's fields.
//   members/node_streams, watch.h      open streams; what is shown
//   traces.h, checkpoint_book.h        a trace; manifests and what servers keep
//   run/run_output.h, run/uploads.h    the run's files; the model that worker 0 sends
//   job_host.h                         the one job, and carrying out what it decides
//   status_report.h                    the status and the figures of the metrics page
//   submissions.h                      taking a job
//   checkpoint_calls.h                 operators' checkpoints
//   returns.h, leaving.h               nodes and jobs that come back, nodes that are to go
// How a job goes is decided by job/job_run.h, who is a member by members/membership.h. Decided
// here: which node a message is from, and what becomes of the job when this process is stopped
// (shutdown).
//
// Concurrency contract
//  1. Every public method may be called from any thread; none blocks on network or disk, except
//     submit and restore_checkpoint (create the run directory), which hold no lock while they do,
//     and shutdown. The constructor reads the checkpoints' manifests.
//  2. NodeLink is called with the mutex held and must neither block nor call back.
//  3. RunDirectory's writer thread and the disk thread call back into us without locks.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/threads/mutex.h"
#include "coordinator/cluster/checkpoint_book.h"
#include "coordinator/cluster/checkpoint_calls.h"
#include "coordinator/cluster/cluster_context.h"
#include "coordinator/cluster/job_host.h"
#include "coordinator/cluster/leaving.h"
#include "coordinator/cluster/returns.h"
#include "coordinator/cluster/run/run_output.h"
#include "coordinator/cluster/run/uploads.h"
#include "coordinator/cluster/status_report.h"
#include "coordinator/cluster/submissions.h"
#include "coordinator/cluster/traces.h"
#include "coordinator/cluster/watch.h"
#include "coordinator/job/job_run.h"
#include "coordinator/members/membership.h"
#include "coordinator/members/node_streams.h"
#include "coordinator/planning/jobs/job_resolver.h"
#include "coordinator/records/durable_job.h"
#include "coordinator/watch/address_probes.h"
#include "coordinator/watch/scrape_targets.h"
#include "coordinator/watch/status_clients.h"
#include "coordinator/watch/status_site.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class Cluster {
 public:
  /// `clock` outlives it.
  Cluster(ClusterOptions options, JobResolver resolver, std::unique_ptr<StateDirectory> state,
          const Clock* clock, ClusterDisk disk = {}, AddressProbes::Seams probing = {});
  ~Cluster();

  /// Goes on with the job that an earlier coordinator had in this state directory. Before streams
  /// and calls. A record that makes no sense is logged, and set aside. FAILED_PRECONDITION: the job
  /// cannot continue at present (its run directory is missing, the disk is full). Only the operator
  /// can correct that or give the job up.
  absl::Status restore();

  // ---- streams of nodes ----
  void on_open(const std::shared_ptr<NodeLink>& link);
  void on_message(NodeLink* link, const v1::NodeMessage& message);
  /// The node ended the stream or it broke.
  void on_end(NodeLink* link, const std::string& reason);

  // ---- calls of operators, who speak our protocol version ----
  absl::StatusOr<v1::SubmitResponse> submit(const v1::SubmitRequest& request);
  absl::StatusOr<v1::DeclareResponse> declare(const v1::DeclareRequest& request);
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
  absl::StatusOr<v1::DrainNodeResponse> drain_node(const v1::DrainNodeRequest& request);

  /// A message that was refused before it came here; `text` names it and its sender.
  void count_refusal(Refusal refusal, const std::string& text);

  // ---- traces ----
  /// OK: all else, and the end, goes to the sink.
  absl::Status begin_trace(const v1::TraceRequest& request, const std::shared_ptr<TraceSink>& sink);
  void on_trace_written(const TraceSink* sink);
  void on_trace_cancelled(const TraceSink* sink);

  // ---- the model ----
  /// A place for the model of this epoch; holds the run directory alive. Follow with end_upload.
  struct Upload {
    std::uint64_t epoch = 0;
    std::string sha256;
    std::shared_ptr<RunFiles> directory;
    std::unique_ptr<ModelFile> file;
    std::function<absl::Status(const SafetensorsHeader&)> check_header;
  };
  /// `sha256` as ModelPart has it. UNAVAILABLE: later, maybe.
  absl::StatusOr<Upload> begin_upload(std::uint64_t epoch, std::uint64_t total_bytes,
                                      const std::string& sha256);
  /// Puts the complete model in place, if it is the job's and may be stored now. Blocks on the
  /// disk.
  absl::Status commit_upload(Upload& upload);
  void end_upload(std::uint64_t epoch, const absl::Status& status);

  // ---- time and end ----
  /// Leases and deadlines; call several times a second.
  void tick();
  /// Saves a checkpoint of the job that trains, ends or keeps the job, and ends every stream. Then
  /// waits (seconds) until the files are written and the clients that follow an ended job have got
  /// its outcome. `how`: instead of options.on_shutdown.
  void shutdown(const std::string& reason, std::optional<OnShutdown> how = std::nullopt);

  // ---- being watched ----
  CoordinatorFigures figures();
  StatusView view();
  /// HOST:PORT of the coordinator's own metrics, "" for none. From now on the state directory has
  /// prometheus-targets.json.
  /// `has_tls`: pages of all daemons speak it where others reach them.
  void set_metrics_address(const std::string& address, bool has_tls);

 private:
  JobSurroundings surroundings();
  void handle_join(NodeLink* link, const v1::Join& join);
  absl::StatusOr<NodeInfo> with_its_job(NodeInfo node) const;
  std::string join_note(NodeRole role) const;
  void handle_member(NodeId from, const v1::NodeMessage& message);
  JobActions handle_report(NodeId from, const v1::NodeMessage& message);
  void handle_heartbeat(NodeId from, const v1::Heartbeat& heartbeat);
  void tell_who_is_vouched_for(Nanoseconds now);
  void watch_drift(Nanoseconds now);
  void end_before_shutdown(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(context_.mutex);
  void save_before_shutdown() ABSL_EXCLUSIVE_LOCKS_REQUIRED(context_.mutex);

  ClusterContext context_;
  // Guarded by context_.mutex, from here on. Parts refer to those above them only;
  // checkpoints_ tells host_ of written and removed manifests through two callbacks.
  Watch watch_;
  NodeStreams streams_;
  Membership membership_;
  AddressProbes probes_;
  std::set<NodeId> vouched_for_;  ///< silent, but the job trains with them; as of the last tick
  ScrapeTargets targets_;
  StatusClients clients_;
  Traces traces_;
  RunOutput output_;
  Uploads uploads_;
  CheckpointBook checkpoints_;
  JobHost host_;
  Leaving leaving_;
  StatusReport report_;
  Submissions submissions_;
  CheckpointCalls checkpoint_calls_;
  Returns returns_;
};

}  // namespace poseidon
