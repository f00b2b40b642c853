#include "sync/node/worker_node.h"

#include <utility>

#include "common/daemon/log.h"
#include "common/memory/tensor_memory.h"
#include "common/node/job_reports.h"
#include "common/node/node_report.h"
#include "spdlog/spdlog.h"

namespace poseidon {

WorkerNode::WorkerNode(Transport* transport, RefusalCounts* refusals, NodeMetrics* metrics,
                       LinkProbe* probe, WorkerNodeOptions options)
    : transport_(transport),
      refusals_(refusals),
      metrics_(metrics),
      options_(std::move(options)),
      calibration_(probe, [this](const v1::Calibrate& task, const std::atomic<bool>& cancelled,
                                 v1::CalibrationReport& report) {
        return measure(task, cancelled, report);
      }) {}

WorkerNode::~WorkerNode() { end(); }

void WorkerNode::on_calibrate(const v1::Calibrate& calibrate) {
  end_epoch(absl::CancelledError("a new job is being prepared"));
  calibration_.begin(calibrate);
}

absl::Status WorkerNode::measure(const v1::Calibrate& task, const std::atomic<bool>& cancelled,
                                 v1::CalibrationReport& report) {
  if (!task.has_compute()) return absl::InvalidArgumentError("a worker sums nothing");
  const absl::Status measured = options_.framework->measure(task.compute(), cancelled, report);
  if (measured.ok()) return measured;
  if (const absl::Status broken = options_.framework->broken_by(measured); !broken.ok()) {
    leave(broken);
  }
  return measured;
}

void WorkerNode::end_job(const absl::Status& reason) {
  calibration_.end();
  std::shared_ptr<WorkerJob> job;
  {
    const MutexLock lock(mutex_);
    job = std::move(job_);
    job_ = nullptr;
  }
  if (job == nullptr) return;
  job->cancel(reason);
  job->join();
  set_log_job("", 0);
  if (metrics_ != nullptr) metrics_->show({});
}

/// The coordinator says that no node uses this worker's messages any more.
void WorkerNode::end_epoch(const absl::Status& reason) {
  end_job(reason);
  reclaim_tensor_memory();
}

/// On the thread of the job or of the measurement.
void WorkerNode::leave(const absl::Status& failure) {
  {
    const MutexLock lock(mutex_);
    failure_ = failure;
  }
  client_->stop(std::string(failure.message()));
}

absl::Status WorkerNode::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

void WorkerNode::on_joined(const v1::Joined& joined) {
  set_log_node(joined.node_id());
  spdlog::info("joined as node {}{}{}", joined.node_id(), joined.note().empty() ? "" : ": ",
               joined.note());
}

void WorkerNode::on_assign(const v1::Assignment& assignment) {
  end_epoch(absl::CancelledError("a new assignment came"));
  set_log_job(assignment.job_id(), assignment.plan().epoch());
  const WorkerServices services{.transport = transport_,
                                .refusals = refusals_,
                                .metrics = metrics_,
                                .client = client_,
                                .node_failed = [this](const absl::Status& why) { leave(why); }};
  auto job = std::make_shared<WorkerJob>(services, options_, assignment);
  {
    const MutexLock lock(mutex_);
    job_ = job;
  }
  job->launch();
}

void WorkerNode::on_start(const v1::Start& start) {
  const MutexLock lock(mutex_);
  if (job_ != nullptr && job_->epoch() == Epoch(start.epoch())) job_->start();
}

void WorkerNode::on_stop(const v1::StopJob& stop) {
  calibration_.end();
  {
    const MutexLock lock(mutex_);
    // A node without a part in this epoch waits for the next one. The coordinator stops it when the
    // job has ended.
    if (job_ != nullptr && job_->epoch() != Epoch(stop.epoch())) return;
  }
  // Its reason says whether the job has failed, was ended, or continues in another epoch.
  spdlog::info("epoch {} {}{}{}", stop.epoch(), stop.succeeded() ? "is done" : "is over",
               stop.reason().empty() ? "" : ": ", stop.reason());
  end_epoch(absl::CancelledError(stop.reason()));
  if (!stop.succeeded() && stop.reason().starts_with(kJobRecovers)) return;
  options_.framework->job_ended(stop.succeeded(), stop.reason());
}

void WorkerNode::on_save_checkpoint(const v1::SaveCheckpoint& save) {
  std::shared_ptr<WorkerJob> job;
  {
    const MutexLock lock(mutex_);
    job = job_;
  }
  if (job != nullptr && job->epoch() == Epoch(save.epoch())) {
    job->save_checkpoint(save);
  }
}

void WorkerNode::on_halt(const v1::Halt& halt) {
  const MutexLock lock(mutex_);
  if (job_ != nullptr && job_->epoch() == Epoch(halt.epoch())) job_->halt();
}

void WorkerNode::on_away(const absl::Status& reason) {
  spdlog::warn("cannot reach the coordinator: {}", std::string(reason.message()));
  options_.probe->count(NodeCount::kRetriesCoordinator);
  calibration_.end();
}

void WorkerNode::on_lost(const absl::Status& reason) {
  spdlog::warn("{}", std::string(reason.message()));
  end_job(reason);
}

void WorkerNode::fill_heartbeat(v1::Heartbeat& heartbeat) {
  std::shared_ptr<WorkerJob> job;
  {
    const MutexLock lock(mutex_);
    job = job_;
  }
  const std::shared_ptr<const TrafficProbe> traffic = job == nullptr ? nullptr : job->traffic();
  const std::shared_ptr<const DataProbe> data = job == nullptr ? nullptr : job->data_probe();
  if (job != nullptr) job->note_awaited();
  fill_heartbeat_totals(traffic.get(), data.get(), *refusals_, heartbeat);
  fill_load(*options_.probe, *heartbeat.mutable_load());
  fill_counters(*options_.probe, traffic.get(), options_.counters, *heartbeat.mutable_counters());
}

}  // namespace poseidon
