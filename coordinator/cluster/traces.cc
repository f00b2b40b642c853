#include "coordinator/cluster/traces.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/plan/plan_proto.h"
#include "common/probes/trace_report.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// Time from the operator's request until every node has received it, on a busy machine.
constexpr double kNoticeSeconds = 0.3;
/// Longest time for the iterations, whatever the operator says.
constexpr Milliseconds kMaxTraceTimeout{600000};

/// No node may be beyond it when the request for the trace arrives. One iteration is under way, and
/// the next may begin meanwhile.
Iteration first_iteration(const JobRun& job, const JobProgress& progress, std::uint64_t wanted) {
  Iteration first = progress.completed + 2;
  if (progress.images_per_s > 0.0) {
    const double images = static_cast<double>(job.view().roster.workers.size()) *
                          static_cast<double>(job.view().run.elastic.batch_size);
    first += static_cast<Iteration>(std::ceil(kNoticeSeconds * progress.images_per_s / images));
  }
  return std::max(std::min(first, job.description().iterations - static_cast<Iteration>(wanted)),
                  progress.completed + 2);
}

std::vector<TraceMember> members_of(const JobRun& job) {
  std::vector<TraceMember> members;
  for (const auto* group : job.view().roster.groups()) {
    for (const Participant& p : *group) {
      members.push_back(
          {.id = p.node.id, .role = p.node.role, .index = p.index, .address = p.node.address});
    }
  }
  return members;
}

}  // namespace

absl::Status Traces::begin(const v1::TraceRequest& request, const std::shared_ptr<TraceSink>& sink,
                           const JobRun* job) {
  if (request.iterations() == 0 || request.iterations() > kMaxTraceIterations) {
    return absl::InvalidArgumentError(absl::StrCat("a trace is of 1 to ", kMaxTraceIterations,
                                                   " iterations, not ", request.iterations()));
  }
  if (context_.shutting_down) return absl::UnavailableError("the coordinator is stopping");
  if (run_) {
    return absl::FailedPreconditionError("another trace is being taken: ask again when it is done");
  }
  if (!job || job->state() != JobState::kRunning) {
    return absl::FailedPreconditionError(absl::StrCat(
        job ? absl::StrCat("job ", job->description().id, " is ", job_state_name(job->state()))
            : "there is no job",
        ": only a training job can be traced; try again when it is running"));
  }
  const Nanoseconds now = context_.now();
  const JobProgress progress = job->progress(now);
  const Iteration end = job->description().iterations;
  const Iteration first = first_iteration(*job, progress, request.iterations());
  if (first >= end) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job->description().id, " has completed ", progress.completed, " of ",
                     end, " iterations: it ends before a trace could begin"));
  }
  v1::TraceHead head;
  head.set_job(job->description().name);
  head.set_job_id(job->description().id);
  head.set_first_iteration(static_cast<std::uint64_t>(first));
  head.set_iterations(
      std::min<std::uint64_t>(request.iterations(), static_cast<std::uint64_t>(end - first)));
  *head.mutable_plan() = plan_to_message(*job->view().run.plan);
  const Milliseconds timeout = std::min(Milliseconds(request.timeout_ms()), kMaxTraceTimeout);
  // Unique among coordinators too, where one follows another.
  const auto number = static_cast<std::uint64_t>(now.count()) | 1U;
  run_ = std::make_unique<TraceRun>(number, std::move(head), members_of(*job), now + timeout);
  epoch_ = job->epoch();
  sink_ = sink;
  spdlog::info("a trace of iterations {} to {} is taken", first,
               first + static_cast<Iteration>(request.iterations()) - 1);
  apply(run_->begin(now));
  return absl::OkStatus();
}

void Traces::apply(TraceActions actions) {
  // A node that cannot be reached leaves the trace, and handling that may add actions to the list.
  for (std::size_t i = 0; i < actions.sends.size(); ++i) {
    const NodeId node = actions.sends[i].first;
    if (streams_.send(node, actions.sends[i].second)) continue;
    TraceActions more = run_->on_gone(node, "is out of reach", context_.now());
    std::move(more.sends.begin(), more.sends.end(), std::back_inserter(actions.sends));
    std::move(more.parts.begin(), more.parts.end(), std::back_inserter(actions.parts));
    actions.done = actions.done || more.done;
  }
  for (const v1::TracePart& part : actions.parts) sink_->write(part);
  if (!actions.done) return;
  sink_->finish(absl::OkStatus());
  run_.reset();
  sink_.reset();
}

void Traces::on_written(const TraceSink* sink) {
  if (run_ && sink_.get() == sink) apply(run_->on_written(context_.now()));
}

void Traces::on_cancelled(const TraceSink* sink) {
  if (!run_ || sink_.get() != sink) return;
  TraceActions actions = run_->cancel();
  actions.done = true;
  apply(std::move(actions));
}

void Traces::tick(const JobRun* job) {
  if (!run_) return;
  const Nanoseconds now = context_.now();
  TraceProgress progress{.completed = 0, .trains = false, .state = "was replaced"};
  if (job) {
    progress.completed = job->progress(now).completed;
    progress.trains = job->state() == JobState::kRunning && job->epoch() == epoch_;
    progress.state = absl::StrCat("became ", job_state_name(job->state()));
  }
  apply(run_->tick(progress, now));
}

void Traces::on_message(NodeId from, const v1::NodeMessage& message) {
  if (!run_) return;  // an answer to a trace that is over
  const Nanoseconds now = context_.now();
  apply(message.has_clock() ? run_->on_echo(from, message.clock(), now)
                            : run_->on_piece(from, message.trace(), now));
}

void Traces::end() {
  if (!run_) return;
  sink_->finish(absl::UnavailableError("the coordinator stops"));
  run_.reset();
  sink_.reset();
}

void Traces::on_gone(NodeId node, const std::string& reason) {
  if (run_) apply(run_->on_gone(node, reason, context_.now()));
}

}  // namespace poseidon
