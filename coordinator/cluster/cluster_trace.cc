// Traces of the running job: what coordinator/watch/trace_run.h decides is sent, and what happens
// is told to it. All under Cluster's mutex.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/plan/plan_proto.h"
#include "common/probes/trace_report.h"
#include "coordinator/cluster/cluster.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// From the operator's question until every node knows of it, on a busy machine.
constexpr double kNoticeSeconds = 0.3;
/// Longest time for the iterations, whatever the operator says.
constexpr Milliseconds kMaxTraceTimeout{600000};

}  // namespace

absl::Status Cluster::begin_trace(const v1::TraceRequest& request,
                                  const std::shared_ptr<TraceSink>& sink) {
  if (request.iterations() == 0 || request.iterations() > kMaxTraceIterations) {
    return absl::InvalidArgumentError(absl::StrCat("a trace is of 1 to ", kMaxTraceIterations,
                                                   " iterations, not ", request.iterations()));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (shutting_down_) return absl::UnavailableError("the coordinator is stopping");
  if (trace_) {
    return absl::FailedPreconditionError("another trace is being taken: ask again when it is done");
  }
  if (!job_ || job_->state() != JobState::kRunning) {
    return absl::FailedPreconditionError(absl::StrCat(
        job_ ? absl::StrCat("job ", job_->description().id, " is ", job_state_name(job_->state()))
             : "there is no job",
        ": a trace is of one that trains; ask again when it is running"));
  }
  const Nanoseconds now = clock_->now();
  const JobProgress progress = job_->progress(now);
  // Nobody may be beyond its first iteration when it hears of it; one is under way, one more may
  // be.
  Iteration first = progress.completed + 2;
  if (progress.images_per_s > 0.0) {
    const double images =
        static_cast<double>(job_->workers().size()) * static_cast<double>(job_->batch_size());
    first += static_cast<Iteration>(std::ceil(kNoticeSeconds * progress.images_per_s / images));
  }
  const Iteration end = job_->description().iterations;
  first = std::max(std::min(first, end - static_cast<Iteration>(request.iterations())),
                   progress.completed + 2);
  if (first >= end) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_->description().id, " has ", progress.completed, " of ", end,
                     " iterations behind it: it ends before a trace could begin"));
  }
  v1::TraceHead head;
  head.set_job(job_->description().name);
  head.set_job_id(job_->description().id);
  head.set_first_iteration(static_cast<std::uint64_t>(first));
  head.set_iterations(
      std::min<std::uint64_t>(request.iterations(), static_cast<std::uint64_t>(end - first)));
  *head.mutable_plan() = plan_to_message(*job_->plan());
  std::vector<TraceMember> members;
  for (const auto* group : {&job_->workers(), &job_->servers()}) {
    for (const Participant& p : *group) {
      members.push_back(
          {.id = p.node.id, .role = p.node.role, .index = p.index, .address = p.node.address});
    }
  }
  const Milliseconds timeout = std::min(Milliseconds(request.timeout_ms()), kMaxTraceTimeout);
  // Unique among coordinators too, where one follows another.
  const auto number = static_cast<std::uint64_t>(now.count()) | 1U;
  trace_ = std::make_unique<TraceRun>(number, std::move(head), std::move(members), now + timeout);
  trace_epoch_ = job_->epoch();
  trace_sink_ = sink;
  spdlog::info("a trace of iterations {} to {} is taken", first,
               first + static_cast<Iteration>(request.iterations()) - 1);
  apply_trace(trace_->begin(now));
  return absl::OkStatus();
}

void Cluster::apply_trace(TraceActions actions) {
  // What cannot be reached is gone for the trace, and the list may grow by what follows from that.
  for (std::size_t i = 0; i < actions.sends.size(); ++i) {
    const NodeId node = actions.sends[i].first;
    if (send(node, actions.sends[i].second)) continue;
    TraceActions more = trace_->on_gone(node, "is out of reach", clock_->now());
    std::move(more.sends.begin(), more.sends.end(), std::back_inserter(actions.sends));
    std::move(more.parts.begin(), more.parts.end(), std::back_inserter(actions.parts));
    actions.done = actions.done || more.done;
  }
  for (const v1::TracePart& part : actions.parts) trace_sink_->write(part);
  if (!actions.done) return;
  trace_sink_->finish(absl::OkStatus());
  trace_.reset();
  trace_sink_.reset();
}

void Cluster::on_trace_written(const TraceSink* sink) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (trace_ && trace_sink_.get() == sink) apply_trace(trace_->on_written(clock_->now()));
}

void Cluster::on_trace_cancelled(const TraceSink* sink) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!trace_ || trace_sink_.get() != sink) return;
  TraceActions actions = trace_->cancel();
  actions.done = true;
  apply_trace(std::move(actions));
}

void Cluster::tick_trace() {
  if (!trace_) return;
  const Nanoseconds now = clock_->now();
  TraceProgress progress{.completed = 0, .trains = false, .state = "was replaced"};
  if (job_) {
    progress.completed = job_->progress(now).completed;
    progress.trains = job_->state() == JobState::kRunning && job_->epoch() == trace_epoch_;
    progress.state = absl::StrCat("became ", job_state_name(job_->state()));
  }
  apply_trace(trace_->tick(progress, now));
}

void Cluster::handle_trace(NodeId from, const v1::NodeMessage& message) {
  if (!trace_) return;  // an answer to a trace that is over
  const Nanoseconds now = clock_->now();
  apply_trace(message.has_clock() ? trace_->on_echo(from, message.clock(), now)
                                  : trace_->on_piece(from, message.trace(), now));
}

void Cluster::trace_lost(NodeId node, const std::string& reason) {
  if (trace_) apply_trace(trace_->on_gone(node, reason, clock_->now()));
}

}  // namespace poseidon
