#include "coordinator/planning/jobs/elastic_job.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/job/job.h"
#include "nlohmann/json.hpp"

namespace poseidon {

absl::StatusOr<ElasticJob> job_with_workers(const std::string& job_json, std::uint32_t begun_with,
                                            std::uint32_t workers) {
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(job_json));
  ElasticJob elastic{.job_json = job_json, .batch_size = job.batch_size};
  if (workers == begun_with) return elastic;
  nlohmann::json json = nlohmann::json::parse(job_json);
  if (job.membership.keeps_global_batch) {
    const std::int64_t global = job.batch_size * begun_with;
    const std::int64_t unit = static_cast<std::int64_t>(workers) * job.micro_batches;
    if (global % unit != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the batch of all workers, ", global,
                       " (membership.batch is \"global\"), is not divisible by ", workers,
                       " workers with ", job.micro_batches, " micro-batches"));
    }
    elastic.batch_size = global / workers;
    json["batch_size"] = elastic.batch_size;
  } else {
    elastic.learning_rate_factor = static_cast<double>(workers) / begun_with;
    json["optimizer"]["learning_rate"] = job.optimizer.learning_rate * elastic.learning_rate_factor;
    // The one rate of a schedule that is no factor of the base rate.
    if (job.optimizer.schedule.minimum > 0.0) {
      json["optimizer"]["schedule"]["minimum"] =
          job.optimizer.schedule.minimum * elastic.learning_rate_factor;
    }
  }
  elastic.job_json = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return elastic;
}

}  // namespace poseidon
