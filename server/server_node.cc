#include "server/server_node.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/job.h"
#include "common/plan_proto.h"
#include "common/status_macros.h"
#include "server/measure_sums.h"
#include "spdlog/spdlog.h"

namespace poseidon {

namespace {

absl::Status measure(const v1::Calibrate& task, const std::atomic<bool>& /*cancelled*/,
                     v1::CalibrationReport& report) {
  if (!task.has_sums()) return absl::InvalidArgumentError("a server computes no layers");
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(task.sums().job_json()));
  if (task.sums().workers() == 0) return absl::InvalidArgumentError("sums of no worker");
  const SystemClock clock;
  report.set_server_sum_bytes_per_s(measure_sums({.chunk_bytes = job.sync.chunk_bytes,
                                                  .workers = task.sums().workers(),
                                                  .optimizer = job.optimizer,
                                                  .max_time = Milliseconds(task.sums().max_ms()),
                                                  .clock = &clock}));
  return absl::OkStatus();
}

}  // namespace

ServerNode::ServerNode(ShardService* service, const RefusalCounts* refusals, NodeMetrics* metrics,
                       LinkProbe* probe)
    : service_(service), refusals_(refusals), metrics_(metrics), calibration_(probe, measure) {}

void ServerNode::on_joined(const v1::Joined& joined) {
  spdlog::info("joined as node {}{}{}", joined.node_id(), joined.note().empty() ? "" : ": ",
               joined.note());
}

void ServerNode::on_assign(const v1::Assignment& assignment) {
  calibration_.end();
  const absl::Status status = assign(assignment);
  if (status.ok()) return;
  spdlog::error("assignment refused: {}", std::string(status.message()));
  v1::NodeMessage message;
  message.mutable_failed()->set_epoch(assignment.plan().epoch());
  message.mutable_failed()->set_reason(std::string(status.message()));
  client_->send(std::move(message));
}

absl::Status ServerNode::assign(const v1::Assignment& assignment) {
  POSEIDON_ASSIGN_OR_RETURN(Plan plan, plan_from_message(assignment.plan()));
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(assignment.job_json()));
  if (assignment.index() >= plan.servers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("assigned as server ", assignment.index(), " of ", plan.servers()));
  }
  const Epoch epoch = plan.epoch;
  auto traffic = std::make_shared<TrafficProbe>(plan.layers.size());
  {
    const std::lock_guard lock(mutex_);
    traffic_ = traffic;
    epoch_ = epoch;
  }
  if (metrics_ != nullptr) metrics_->show(std::make_shared<const Plan>(plan), traffic);
  std::int64_t parameters = 0;
  for (const PlanChunk& chunk : plan.chunks) {
    if (chunk.server == ServerIndex(assignment.index())) parameters += chunk.elements;
  }
  const std::uint32_t workers = plan.workers();
  service_->assign(std::move(plan), ServerIndex(assignment.index()), job.optimizer, traffic,
                   [this, epoch] {
                     v1::NodeMessage message;
                     message.mutable_ready()->set_epoch(epoch.value());
                     client_->send(std::move(message));
                   });
  spdlog::info("job {}: server {} with {} parameters for {} workers, epoch {}", job.name,
               assignment.index(), parameters, workers, epoch.value());
  return absl::OkStatus();
}

void ServerNode::on_stop(const v1::StopJob& stop) {
  spdlog::info("epoch {} {}: {}", stop.epoch(), stop.succeeded() ? "is done" : "failed",
               stop.reason());
  calibration_.end();
  drop(Epoch(stop.epoch()));
}

void ServerNode::on_lost(const absl::Status& reason) {
  spdlog::warn("coordinator lost: {}", std::string(reason.message()));
  calibration_.end();
  Epoch epoch;
  {
    const std::lock_guard lock(mutex_);
    epoch = epoch_;
  }
  drop(epoch);
}

void ServerNode::drop(Epoch epoch) {
  {
    const std::lock_guard lock(mutex_);
    if (epoch_ != epoch) return;
    traffic_.reset();
  }
  if (metrics_ != nullptr) metrics_->show(nullptr, nullptr);
  service_->drop(epoch);
}

void ServerNode::fill_heartbeat(v1::Heartbeat& heartbeat) {
  std::shared_ptr<TrafficProbe> traffic;
  {
    const std::lock_guard lock(mutex_);
    traffic = traffic_;
  }
  fill_heartbeat_totals(traffic.get(), nullptr, *refusals_, heartbeat);
}

}  // namespace poseidon
