#include "tests/sim/sim_worker.h"

#include <utility>

#include "common/base/check.h"
#include "common/node/node_report.h"
#include "tests/sim/sim_job.h"

namespace poseidon::sim {

SimWorker::SimWorker(Transport* transport, SimWorkerOptions options, Truth* truth,
                     std::function<void(const absl::Status&)> ended)
    : transport_(transport),
      options_(std::move(options)),
      truth_(truth),
      factors_(transport, kFactorSuffix),
      stores_(transport, kStoreSuffix),
      relays_(transport, kRelaySuffix),
      door_(&factors_, &refusals_),
      relay_(&relays_, &refusals_, {}, options_.pending_limit_bytes),
      control_(
          transport,
          [this] {
            v1::Join join;
            join.set_role(v1::NODE_ROLE_WORKER);
            join.set_address(options_.address);
            join.set_device("cpu");
            join.set_process_id(options_.process_id);
            return join;
          }(),
          this, std::move(ended)) {
  POSEIDON_CHECK(factors_.listen(options_.address, &door_).ok(), "a free address");
  POSEIDON_CHECK(relays_.listen(options_.address, &relay_).ok(), "a free address");
  control_.start();
}

SimWorker::~SimWorker() = default;

void SimWorker::end_job() { job_.reset(); }

void SimWorker::on_calibrate(const v1::Calibrate& /*calibrate*/) {
  truth_->fail("a job that asks for no measurement was measured");
}

void SimWorker::on_assign(const v1::Assignment& assignment) {
  end_job();
  job_ = std::make_unique<Job>(this, assignment, mix_seed(options_.seed, ++jobs_));
}

void SimWorker::on_start(const v1::Start& start) {
  if (job_ != nullptr && job_->epoch() == Epoch(start.epoch())) job_->start();
}

void SimWorker::on_stop(const v1::StopJob& stop) {
  if (job_ != nullptr && job_->epoch() == Epoch(stop.epoch())) end_job();
}

void SimWorker::on_halt(const v1::Halt& halt) {
  if (job_ != nullptr && job_->epoch() == Epoch(halt.epoch())) job_->halt();
}

void SimWorker::on_save_checkpoint(const v1::SaveCheckpoint& save) {
  if (job_ != nullptr && job_->epoch() == Epoch(save.epoch())) job_->save_checkpoint(save);
}

void SimWorker::fill_heartbeat(v1::Heartbeat& heartbeat) {
  if (job_ == nullptr || job_->traffic() == nullptr) return;
  job_->note_awaited();
  fill_heartbeat_totals(job_->traffic(), nullptr, refusals_, heartbeat);
}

void SimWorker::on_lost(const absl::Status& /*reason*/) { end_job(); }

}  // namespace poseidon::sim
