#include "coordinator/job/job_context.h"

#include <utility>

#include "common/base/check.h"

namespace poseidon {
namespace {

StaffingNeeds needs_of(const JobDescription& job) {
  StaffingNeeds needs{.workers = job.workers,
                      .servers = job.servers,
                      .min_workers = job.min_workers,
                      .max_workers = job.max_workers,
                      .replicas = job.checkpoints.replicas};
  if (job.with_workers) {
    needs.allows = [&job](std::uint32_t begun_with, std::uint32_t workers) {
      return job.with_workers(begun_with, workers).ok();
    };
  }
  return needs;
}

}  // namespace

JobContext::JobContext(const JobRunOptions& the_options, JobDescription the_description,
                       Nanoseconds now)
    : options(the_options),
      description(std::move(the_description)),
      iterations(description.iterations),
      states(now),
      checkpoints(options.checkpoints, description.checkpoints.keep, description.iterations,
                  description.committed),
      source(checkpoints, description.checkpoints.every),
      staffing(needs_of(description), options.mishaps, checkpoints),
      plans(description.plans.earlier) {
  POSEIDON_CHECK(description.iterations > 0 && description.batch_size > 0, "a checked job");
  POSEIDON_CHECK(
      description.make_plan && description.learning_rate && description.why_no_calibration,
      "all functions are given");
  ElasticJob as_submitted{.job_json = description.job_json, .batch_size = description.batch_size};
  if (!description.source) {
    run = std::make_unique<EpochRun>(description.epoch, 0, 0, std::move(as_submitted));
    return;
  }
  const CheckpointManifest& from = source.begin_at(*description.source);
  POSEIDON_CHECK(from.iteration() < description.iterations, "something is left to do");
  staffing.set_begun_with(from.begun_with);
  run = std::make_unique<EpochRun>(description.epoch, from.iteration(), from.samples,
                                   std::move(as_submitted));
}

}  // namespace poseidon
