#include "cli/commands/job_file.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/files/json_fields.h"
#include "common/job/declared_model.h"
#include "common/plan/plan_pin.h"
#include "coordinator/planning/jobs/job_resolver.h"
#include "coordinator/planning/tensor_rules.h"
#include "models/net/batch_norm_errors.h"
#include "worker/data/feed/batches.h"
#include "worker/engine/model_file.h"

namespace poseidon {
namespace {

constexpr std::uint64_t kMaxPlanFileBytes = 64 << 20;

/// `what`: of the wanted type, for people.
absl::Status check_type(const std::string& key, const std::string& path,
                        std::filesystem::file_type wanted, const char* what) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == wanted) return absl::OkStatus();
  if (type == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(
        absl::StrCat(key, ": no such ", what, ": ", path,
                     " (relative paths are relative to the job file's folder)"));
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": cannot look at ", path, ": ", error.message()));
  }
  return absl::InvalidArgumentError(absl::StrCat(key, ": not a ", what, ": ", path));
}

absl::Status check_file(const std::string& key, const std::string& path) {
  return check_type(key, path, std::filesystem::file_type::regular, "file");
}

absl::Status check_folder(const std::string& key, const std::string& path) {
  return check_type(key, path, std::filesystem::file_type::directory, "folder");
}

/// The job travels as JSON, which has no other letters.
absl::Status check_letters(const std::string& key, const std::string& path) {
  const std::string shown = to_utf8(path);
  if (shown == path) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key,
                                                 ": not UTF-8, so workers cannot find it: ", shown,
                                                 "; rename it, or use a link with another name"));
}

absl::Status check_letters(const std::string& key, const DataSourceSpec& source) {
  POSEIDON_RETURN_IF_ERROR(check_letters(key + ".images", source.images));
  POSEIDON_RETURN_IF_ERROR(check_letters(key + ".labels", source.labels));
  POSEIDON_RETURN_IF_ERROR(check_letters(key + ".path", source.path));
  for (std::size_t i = 0; i < source.files.size(); ++i) {
    POSEIDON_RETURN_IF_ERROR(check_letters(absl::StrCat(key, ".files[", i, "]"), source.files[i]));
  }
  return absl::OkStatus();
}

absl::Status check_letters(const JobSpec& job) {
  POSEIDON_RETURN_IF_ERROR(check_letters("init.weights", job.init.weights));
  POSEIDON_RETURN_IF_ERROR(check_letters("data.train", job.data.train));
  return job.data.test ? check_letters("data.test", *job.data.test) : absl::OkStatus();
}

absl::Status check_source(const std::string& key, const DataSourceSpec& source) {
  if (!source.images.empty()) {
    POSEIDON_RETURN_IF_ERROR(check_file(key + ".images", source.images));
  }
  if (!source.labels.empty()) {
    POSEIDON_RETURN_IF_ERROR(check_file(key + ".labels", source.labels));
  }
  if (!source.path.empty()) POSEIDON_RETURN_IF_ERROR(check_folder(key + ".path", source.path));
  for (std::size_t i = 0; i < source.files.size(); ++i) {
    POSEIDON_RETURN_IF_ERROR(check_file(absl::StrCat(key, ".files[", i, "]"), source.files[i]));
  }
  return absl::OkStatus();
}

/// `status` with the job's key in front.
absl::Status under_key(const char* key, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", status.message()));
}

/// Puts the plan in place of its path: no other machine needs the file.
absl::Status pin_plan(SyncSpec& sync) {
  if (!sync.plan.is_string()) return absl::OkStatus();
  const std::string path = sync.plan.get<std::string>();
  POSEIDON_RETURN_IF_ERROR(check_file("sync.plan", path));
  const auto text = read_file(path, kMaxPlanFileBytes);
  if (!text.ok()) return under_key("sync.plan", text.status());
  const auto json = parse_json(*text, path, {.max_bytes = kMaxPlanFileBytes});
  if (!json.ok()) return under_key("sync.plan", json.status());
  const auto pin = plan_pin_from_json(*json, path);
  if (!pin.ok()) return under_key("sync.plan", pin.status());
  sync.plan = plan_pin_to_json(*pin);
  return absl::OkStatus();
}

template <typename Model>
absl::StatusOr<Model> of_model(const std::filesystem::path& path, absl::StatusOr<Model> model) {
  if (model.ok()) return model;
  return absl::Status(model.status().code(),
                      absl::StrCat(path.string(), ": model: ", model.status().message()));
}

}  // namespace

absl::StatusOr<PreparedJob> prepare_job(const std::filesystem::path& path) {
  POSEIDON_ASSIGN_OR_RETURN(JobSpec spec, load_job(path));
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        path.string(), ": the current folder does not exist any more: ", error.message()));
  }
  const std::filesystem::path folder = path_from(here, path).parent_path();
  resolve_paths(spec, folder);
  PreparedJob job;
  if (is_declared_model(spec.model)) {
    POSEIDON_ASSIGN_OR_RETURN(job.layout, of_model(path, parse_declared_model(spec.model)));
  } else {
    POSEIDON_ASSIGN_OR_RETURN(job.net, of_model(path, resolve_network(spec.model, folder)));
    job.layout = layout_of(job.net);
    spec.model = job.net.source;
  }
  absl::Status status = check_letters(spec);
  if (status.ok()) status = pin_plan(spec.sync);
  std::vector<PlannerLayer> layers = planner_layers(job.layout);
  if (status.ok()) status = check_sync(layers, spec.sync);
  if (status.ok()) status = check_pinned_chunks(spec);
  if (status.ok()) status = apply_tensor_rules(spec.optimizer.layers, layers);
  if (status.ok()) status = check_batch_norms(job.net, spec.batch_size / spec.micro_batches);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", status.message()));
  }
  job.json = job_to_json(spec);
  if (const absl::Status sent = parse_job(job.json).status(); !sent.ok()) {
    const std::string where = path.string();
    if (!spec.sync.plan.is_null()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": sync.plan: with its ", spec.sync.plan["chunks"].size(),
                       " chunks the job is too large to be sent; remove \"chunks\" from the plan "
                       "file to use only its schemes"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": model: with its ", std::max(job.net.layers.size(), job.layout.layers.size()),
        " layers written out, the job cannot be sent: ", sent.message()));
  }
  job.spec = std::move(spec);
  return job;
}

absl::StatusOr<PreparedJob> prepare_job_of_workers(const std::filesystem::path& path) {
  POSEIDON_ASSIGN_OR_RETURN(PreparedJob job, prepare_job(path));
  if (is_declared_model(job.spec.model)) {
    // Of such a model there is no network.
    return of_model(path, resolve_network(job.spec.model, path.parent_path())).status();
  }
  return job;
}

absl::Status check_data(const JobSpec& job, const NetSpec& net, std::uint32_t workers) {
  const BatchPlacement placement{.workers = workers, .rank = 0, .batch_size = job.batch_size};
  POSEIDON_RETURN_IF_ERROR(
      under_key("data.train",
                TrainBatches::open(job.data, net.input_shape, net.classes, placement).status()));
  if (!job.data.test) return absl::OkStatus();
  return under_key("data.test",
                   TestBatches::open(job.data, net.input_shape, net.classes, placement).status());
}

absl::StatusOr<std::string> check_weights(const JobSpec& job, const NetSpec& net) {
  if (job.init.weights.empty()) return "";
  const auto report = check_weights(job.init.weights, job.init.rename, net);
  if (!report.ok()) return under_key("init.weights", report.status());
  return absl::StrCat(job.init.weights, ": ", weights_report_to_text(*report));
}

absl::Status check_files(const JobSpec& job) {
  if (!job.init.weights.empty()) {
    POSEIDON_RETURN_IF_ERROR(check_file("init.weights", job.init.weights));
  }
  POSEIDON_RETURN_IF_ERROR(check_source("data.train", job.data.train));
  if (job.data.test) POSEIDON_RETURN_IF_ERROR(check_source("data.test", *job.data.test));
  return absl::OkStatus();
}

}  // namespace poseidon
