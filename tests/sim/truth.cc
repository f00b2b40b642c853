#include "tests/sim/truth.h"

#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/safetensors.h"
#include "models/net/model_tensors.h"

namespace poseidon::sim {

Scenario scenario_of(const Plan& plan, const JobSpec& job) {
  Scenario s;
  s.workers = plan.workers();
  s.servers = plan.servers();
  s.batch_size = plan.batch_size;
  s.chunk_elements = plan.chunk_bytes / static_cast<std::int64_t>(sizeof(float));
  s.iterations = job.iterations;
  s.optimizer = job.optimizer;
  s.wire_type = plan.wire_type;
  s.leaders = plan.leaders;
  for (const PlanLayer& layer : plan.layers) {
    SimLayer& out = s.layers.emplace_back();
    out.elements = layer.parameters;
    out.tensors = layer.tensors;
    if (layer.scheme != Scheme::kSfb) continue;
    out.outputs = layer.shape[0];
    out.inputs = layer.shape[1];
  }
  return s;
}

double loss_of(std::uint32_t rank, Iteration iteration,
               const std::vector<std::vector<float>>& read) {
  double loss = 0.001 * static_cast<double>(rank) + 0.01 * static_cast<double>(iteration);
  for (const std::vector<float>& layer : read) {
    loss += std::abs(static_cast<double>(layer.front())) + static_cast<double>(layer.back()) / 3.0;
  }
  return loss;
}

double test_loss_of(std::uint32_t rank, const std::vector<std::vector<float>>& read) {
  return loss_of(rank + 7, 0, read);
}

void update_statistics(Iteration iteration, float read, std::vector<float>& statistics) {
  float place = static_cast<float>(iteration);
  for (float& value : statistics) {
    value = 0.9f * value + 0.1f * std::sin(read + place);
    place += 1.0f;
  }
}

std::string encode_model(const JobSpec& job, std::span<const std::span<const float>> layers,
                         std::span<const float> statistics) {
  const absl::StatusOr<ModelLayout> layout = resolve_layout(job.model, ".");
  POSEIDON_CHECK(layout.ok(), "the job's model");
  std::vector<TensorView> tensors;
  for (const ModelTensor& tensor : model_tensors(*layout)) {
    const std::span<const float> values =
        tensor.is_statistic ? statistics : layers[tensor.layer.value()];
    tensors.push_back({.name = tensor.name,
                       .shape = tensor.shape,
                       .values = values.subspan(tensor.offset, tensor.elements())});
  }
  const absl::StatusOr<EncodedSafetensors> file = encode_safetensors(tensors);
  POSEIDON_CHECK(file.ok(), "shapes that fit");
  std::string bytes = file->header;
  for (const std::string_view piece : file->values) bytes += piece;
  return bytes;
}

Course::Course(Scenario scenario, Iteration first, std::shared_ptr<const Course> before,
               std::size_t statistics)
    : scenario_(std::move(scenario)), first_(first), before_(std::move(before)) {
  Version version;
  if (before_ == nullptr) {
    version.state = initial_state(scenario_);
    version.statistics.assign(statistics, 0.0f);
  } else {
    version = before_->at(first);
  }
  version.read = as_read(scenario_, version.state);
  versions_.push_back(std::move(version));
}

const Course::Version& Course::at(Iteration version) const {
  if (version < first_) {
    POSEIDON_CHECK(before_ != nullptr, "a version of this run");
    return before_->at(version);
  }
  while (first_ + static_cast<Iteration>(versions_.size()) <= version) {
    const Iteration iteration = first_ + static_cast<Iteration>(versions_.size()) - 1;
    Version next = versions_.back();
    update_statistics(iteration, next.read[0][0], next.statistics);
    train_step(scenario_, iteration, next.state);
    next.read = as_read(scenario_, next.state);
    next.samples += static_cast<std::uint64_t>(scenario_.workers) *
                    static_cast<std::uint64_t>(scenario_.batch_size);
    versions_.push_back(std::move(next));
  }
  return versions_[static_cast<std::size_t>(version - first_)];
}

double Course::loss(Iteration iteration) const {
  if (iteration < first_) return before_->loss(iteration);
  double sum = 0.0;
  for (std::uint32_t rank = 0; rank < scenario_.workers; ++rank) {
    sum += loss_of(rank, iteration, at(iteration).read);
  }
  return sum / static_cast<double>(scenario_.workers);
}

double Course::test_loss(Iteration version) const {
  // A test at the epoch's first version is made by the epoch (its line was taken back).
  if (version < first_) return before_->test_loss(version);
  double sum = 0.0;
  for (std::uint32_t rank = 0; rank < scenario_.workers; ++rank) {
    sum += test_loss_of(rank, at(version).read);
  }
  return sum / static_cast<double>(scenario_.workers);
}

std::shared_ptr<const Course> Truth::begin(const Plan& plan, const JobSpec& job,
                                           std::optional<SnapshotId> restore, std::uint64_t samples,
                                           std::size_t statistics) {
  const std::string text = plan_to_json(plan);
  if (const auto known = epochs_.find(plan.epoch); known != epochs_.end()) {
    if (known->second.plan != text || known->second.restore != restore) {
      fail(absl::StrCat("epoch ", plan.epoch.value(), " was assigned with two plans or sources"));
    }
    return known->second.course;
  }
  std::shared_ptr<const Course> before;
  Iteration first = 0;
  if (restore) {
    first = snapshot_iteration(*restore);
    before = of(snapshot_epoch(*restore));
    if (before == nullptr) {
      fail(absl::StrCat("checkpoint ", snapshot_name(*restore), " is of no epoch that was"));
      return nullptr;
    }
  }
  auto course = std::make_shared<const Course>(scenario_of(plan, job), first, before, statistics);
  if (course->at(first).samples != samples) {
    fail(absl::StrCat("epoch ", plan.epoch.value(), " goes on after ", samples, " samples, not ",
                      course->at(first).samples));
  }
  std::set<ServerIndex> needed;
  for (const PlanChunk& chunk : plan.chunks) needed.insert(chunk.server);
  epochs_[plan.epoch] = {course, text, restore, needed.size() == plan.servers()};
  return course;
}

void Truth::on_assign(Epoch epoch) {
  if (epoch < newest_assigned_) {
    fail(absl::StrCat("epoch ", epoch.value(), " was assigned after epoch ",
                      newest_assigned_.value()));
  }
  newest_assigned_ = epoch;
}

std::shared_ptr<const Course> Truth::of(Epoch epoch) const {
  const auto known = epochs_.find(epoch);
  return known == epochs_.end() ? nullptr : known->second.course;
}

std::shared_ptr<const Course> Truth::newest() const {
  return epochs_.empty() ? nullptr : epochs_.rbegin()->second.course;
}

bool Truth::every_server_is_needed() const {
  return !epochs_.empty() && epochs_.rbegin()->second.every_server_is_needed;
}

}  // namespace poseidon::sim
