#pragma once

// What is known of one epoch: where it begins, by which plan it trains, what its workers have
// reported. Pure.
//
// Called by: waiting.h and recovery.h build one when an epoch begins, in place of the one before;
// so nothing of it is ever reset.
// Calls: reports/reports.h combines what the workers report.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "coordinator/job/reports/calibration_run.h"
#include "coordinator/job/reports/reports.h"
#include "coordinator/planning/calibrate.h"
#include "coordinator/planning/jobs/elastic_job.h"

namespace poseidon {

/// One thread only. An epoch that is over stays until the next one begins: its reports say which
/// checkpoints may be gone on from.
struct EpochRun {
  /// The job waits for its first epoch, which has no workers yet.
  EpochRun(Epoch the_epoch, Iteration first, std::uint64_t the_samples, ElasticJob the_job)
      : epoch(the_epoch),
        first_iteration(first),
        samples(the_samples),
        elastic(std::move(the_job)),
        iterations(0, first),
        tests(0) {}
  /// The next epoch, after the one `before`: it keeps the plan and text of that one until it has
  /// its own.
  EpochRun(const EpochRun& before, Epoch the_epoch, Iteration first, std::uint64_t the_samples,
           std::uint32_t workers)
      : epoch(the_epoch),
        first_iteration(first),
        samples(the_samples),
        elastic(before.elastic),
        plan(before.plan),
        plan_basis(before.plan_basis),
        next_plan(before.next_plan),
        iterations(workers, first),
        tests(workers) {}

  Epoch epoch;
  Iteration first_iteration = 0;
  std::uint64_t samples = 0;  ///< that all workers had taken before the epoch
  /// The job as it is with this epoch's number of workers.
  ElasticJob elastic;
  std::optional<CalibrationRun> calibration;  ///< while calibrating
  /// Null before the job's first plan. Until the epoch has its own: that of the epoch before.
  std::shared_ptr<const Plan> plan;
  std::string plan_basis;         ///< what the plan rests on, for people
  std::optional<Plan> next_plan;  ///< for the next epoch, instead of one like the plan in force
  IterationCombiner iterations;
  TestCombiner tests;
  std::optional<double> loss;  ///< of the newest iteration that is complete
  std::string model_sha256;    ///< of the model that worker 0 announced; "": none yet
  bool model_stored = false;   ///< model.safetensors is on disk
  ReplanState replan;          ///< what the comparison with other plans remembers
  std::string recommendation;  ///< what another plan would gain, for people; "": none would

  /// How many iterations the metrics tell of; nothing before the first plan.
  std::optional<Iteration> told() const {
    return plan ? std::optional(iterations.completed()) : std::nullopt;
  }
};

}  // namespace poseidon
