#include "common/node/node_calibration.h"

#include <algorithm>
#include <utility>

#include "spdlog/spdlog.h"

namespace poseidon {

void NodeCalibration::Answers::send(std::uint64_t from, v1::CalibrationReport report,
                                    const absl::Status& status) {
  if (!status.ok()) report.set_error(std::string(status.message()));
  const MutexLock lock(mutex);
  if (client == nullptr || task != from) return;
  if (!status.ok()) spdlog::warn("not measured: {}", std::string(status.message()));
  v1::NodeMessage message;
  *message.mutable_calibration() = std::move(report);
  client->send(std::move(message));
}

NodeCalibration::NodeCalibration(LinkProbe* probe, Work work)
    : probe_(probe), work_(std::move(work)) {}

NodeCalibration::~NodeCalibration() {
  end();
  const MutexLock lock(answers_->mutex);
  answers_->client = nullptr;
}

void NodeCalibration::set_client(ReportSink* client) {
  const MutexLock lock(answers_->mutex);
  answers_->client = client;
}

void NodeCalibration::end() {
  {
    const MutexLock lock(answers_->mutex);
    ++answers_->task;
  }
  cancelled_ = true;
  if (thread_.joinable()) thread_.join();
  if (probe_ != nullptr) probe_->cancel();
}

void NodeCalibration::begin(const v1::Calibrate& task) {
  end();
  cancelled_ = false;
  std::uint64_t number = 0;
  {
    const MutexLock lock(answers_->mutex);
    number = ++answers_->task;
  }
  if (task.has_link()) {
    measure_link(task, number);
    return;
  }
  thread_ = std::thread([this, task, number] {
    v1::CalibrationReport report;
    report.set_epoch(task.epoch());
    report.set_step(task.step());
    const absl::Status status = work_(task, cancelled_, report);
    answers_->send(number, std::move(report), status);
  });
}

void NodeCalibration::measure_link(const v1::Calibrate& task, std::uint64_t number) {
  v1::CalibrationReport report;
  report.set_epoch(task.epoch());
  report.set_step(task.step());
  if (probe_ == nullptr) {
    answers_->send(number, std::move(report),
                   absl::UnimplementedError("this node measures no network"));
    return;
  }
  const ProbeLimits limits{
      .max_bytes = std::min<std::uint64_t>(task.link().max_bytes(), kProbeCeiling.max_bytes),
      .max_time =
          std::min<Nanoseconds>(Milliseconds(task.link().max_ms()), kProbeCeiling.max_time)};
  probe_->measure(task.link().peer_address(), limits,
                  [answers = answers_, number, report](const absl::StatusOr<ProbeResult>& result) {
                    v1::CalibrationReport answer = report;
                    if (result.ok()) {
                      answer.set_send_bytes_per_s(result->send_bytes_per_s);
                      answer.set_receive_bytes_per_s(result->receive_bytes_per_s);
                      answer.set_latency_seconds(result->latency_s);
                    }
                    answers->send(number, std::move(answer), result.status());
                  });
}

}  // namespace poseidon
