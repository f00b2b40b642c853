#pragma once

// Writes what `poseidon status`, the status page and the metrics page show of the cluster now.
// Called by: cluster.cc and submissions.cc. Calls: the parts of Cluster, which it reads.
//
// Invariants
//  1. It changes nothing.
//  2. A job is shown as ended only when its files are closed, because clients that wait for the end
//     read them. Used with Cluster's mutex held (cluster_context.h).

#include <set>
#include <string>

#include "coordinator/cluster/job_host.h"
#include "coordinator/cluster/run/uploads.h"
#include "coordinator/watch/address_probes.h"
#include "coordinator/watch/metrics.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

class StatusReport {
 public:
  /// All outlive it.
  StatusReport(const ClusterContext& context, const JobSurroundings& parts, const JobHost& host,
               const Uploads& uploads, const AddressProbes& probes)
      : context_(context),
        membership_(parts.membership),
        streams_(parts.streams),
        watch_(parts.watch),
        targets_(parts.targets),
        output_(parts.output),
        host_(host),
        uploads_(uploads),
        probes_(probes) {}

  /// `last_job`: shown while there is no job. `silent_nodes`: members that send no messages, though
  /// they have a stream.
  v1::GetStatusResponse now(const v1::GetStatusResponse& last_job,
                            const std::set<NodeId>& silent_nodes) const;
  /// Of an ended job: the part that the next process still shows.
  v1::GetStatusResponse outcome() const;
  CoordinatorFigures figures(const std::set<NodeId>& silent_nodes) const;

 private:
  void fill_job(v1::GetStatusResponse& out) const;
  std::optional<std::string> leaving_state(NodeId id) const;
  std::string newcomer_note(const NodeInfo& node) const;
  void fill_nodes(v1::GetStatusResponse& out, const std::set<NodeId>& silent_nodes) const;
  void fill_layers(v1::GetStatusResponse& out) const;
  void fill_refused(v1::GetStatusResponse& out) const;
  void fill_own_counters(v1::GetStatusResponse& out) const;

  const ClusterContext& context_;
  const Membership& membership_;
  const NodeStreams& streams_;
  const Watch& watch_;
  const ScrapeTargets& targets_;
  const RunOutput& output_;
  const JobHost& host_;
  const Uploads& uploads_;
  const AddressProbes& probes_;
};

}  // namespace poseidon
