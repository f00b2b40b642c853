#include "client/program_framework.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "models/weights/encoded_model.h"

namespace poseidon {
namespace {

/// How long an epoch's thread waits for a call before it looks whether the epoch is over.
constexpr Milliseconds kCallPatience{50};

class ProgramJob final : public FrameworkJob {
 public:
  explicit ProgramJob(ProgramParts* parts) : parts_(parts) {}

  absl::Status prepare(const FrameworkTask& task) override {
    task_ = task;
    POSEIDON_RETURN_IF_ERROR(check_plan_fits(*task.plan));
    link().prepare({.first_iteration = task.first_iteration(),
                    .rank = task.rank.value(),
                    .workers = task.plan->workers()});
    task_.plan = nullptr;
    if (task.restore == nullptr) {
      memory_of_program().restore_initial();
      state_ = parts_->initial_state;
    } else {
      state_.assign(parts_->initial_state.size(), 0.0f);
    }
    return absl::OkStatus();
  }

  LayerMemory memory(LayerIndex layer) override {
    return memory_of_program().layer_memory(layer.value());
  }
  FactorEngine* factor_engine() override { return nullptr; }
  FactorState* factor_state() override { return nullptr; }
  std::optional<DataIdentity> data() const override { return std::nullopt; }
  std::shared_ptr<const DataProbe> data_probe() const override { return data_probe_; }

  std::int64_t own_state_elements() const override {
    return static_cast<std::int64_t>(parts_->initial_state.size());
  }
  absl::Status read_own_state(std::span<float> values) override {
    std::ranges::copy(state_, values.begin());
    return absl::OkStatus();
  }
  absl::Status write_own_state(std::span<const float> values) override {
    state_.assign(values.begin(), values.end());
    return absl::OkStatus();
  }

  absl::StatusOr<Iteration> train(const TrainingServices& services) override {
    link().set_cancel([sync = services.sync](const absl::Status& why) { sync->cancel(why); });
    absl::StatusOr<Iteration> trained = serve(services);
    link().set_cancel(nullptr);
    if (!trained.ok()) link().over(trained.status());
    return trained;
  }

  absl::Status give_model(
      const std::function<absl::Status(std::span<const std::string_view> pieces)>& take) override {
    std::vector<std::span<const float>> parameters;
    for (std::size_t l = 0; l < memory_of_program().layers(); ++l) {
      // Where programs step, theirs hold sums.
      parameters.emplace_back(parts_->sums ? memory_of_program().gradients(l)
                                           : memory_of_program().parameters(l));
    }
    POSEIDON_ASSIGN_OR_RETURN(
        const EncodedModel model,
        EncodedModel::encode(memory_of_program().layout(), parameters, state_));
    return take(model.pieces());
  }

 private:
  ProgramLink& link() { return *parts_->link; }
  ProgramMemory& memory_of_program() { return *parts_->memory; }

  /// The plan and the program must speak of the same layers, or gradients would go to the wrong
  /// place.
  absl::Status check_plan_fits(const Plan& plan) {
    const std::vector<LayoutLayer>& layers = memory_of_program().layout().layers;
    if (plan.layers.size() != layers.size()) {
      return absl::InternalError(absl::StrCat("the job has ", plan.layers.size(),
                                              " layers, this program declares ", layers.size(),
                                              ": is it another program's job?"));
    }
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const PlanLayer& planned = plan.layers[l];
      if (planned.name != layers[l].name || planned.parameters != layers[l].parameter_count()) {
        return absl::InternalError(
            absl::StrCat("layer ", l, " of the job is ", planned.name, " with ", planned.parameters,
                         " parameters, this program declares ", layers[l].name, " with ",
                         layers[l].parameter_count(), ": is it another program's job?"));
      }
      if (planned.scheme == Scheme::kSfb) {
        return absl::InternalError(
            absl::StrCat("the plan sends factors of layer ", planned.name,
                         ", which programs cannot do yet: set sync.scheme to \"ps\" in the job"));
      }
    }
    return absl::OkStatus();
  }

  /// At the job's beginning all have worker 0's state, and remember it with the parameters.
  absl::Status begin(const TrainingServices& services) {
    if (task_.first_iteration() == 0) {
      POSEIDON_RETURN_IF_ERROR(services.events->before_test(0));
      if (!link().has_joined()) {
        memory_of_program().remember_initial();
        parts_->initial_state = state_;
      }
    }
    link().begin(state_);
    return absl::OkStatus();
  }

  /// Carries out the program's calls, in the order that client/program_progress.h says.
  absl::StatusOr<Iteration> serve(const TrainingServices& services) {
    POSEIDON_RETURN_IF_ERROR(begin(services));
    using Kind = ProgramProgress::Action::Kind;
    step_began_ = clock_.now();
    while (true) {
      if (*task_.cancelled) return absl::CancelledError("the epoch is over");
      POSEIDON_RETURN_IF_ERROR(link().failure());
      const ProgramProgress::Action action = link().next(kCallPatience);
      switch (action.kind) {
        case Kind::kNothing:
          break;
        case Kind::kGradient:
          POSEIDON_RETURN_IF_ERROR(give_gradient(services, action));
          break;
        case Kind::kNorm: {
          POSEIDON_ASSIGN_OR_RETURN(const double norm,
                                    services.sync->wait_gradient_norm(action.iteration));
          link().norm_known(action.iteration, norm);
          break;
        }
        case Kind::kRates:
          services.sync->step_rates(action.iteration, link().rates_of(action.iteration));
          break;
        case Kind::kStep:
          end_step(services, action);
          break;
        case Kind::kAwait: {
          const LayerIndex layer(static_cast<std::uint32_t>(action.layer));
          POSEIDON_RETURN_IF_ERROR(services.sync->wait_landed(layer, action.iteration));
          link().landed(action.layer);
          break;
        }
        case Kind::kFinish:
          POSEIDON_RETURN_IF_ERROR(services.sync->finish(action.iteration));
          return action.iteration;
      }
    }
  }

  absl::Status give_gradient(const TrainingServices& services,
                             const ProgramProgress::Action& action) {
    if (backward_of_ != action.iteration) {
      POSEIDON_RETURN_IF_ERROR(services.events->before_backward(action.iteration));
      backward_of_ = action.iteration;
    }
    services.sync->gradient_ready(LayerIndex(static_cast<std::uint32_t>(action.layer)),
                                  action.iteration);
    services.traffic->batch_passed();
    return absl::OkStatus();
  }

  void end_step(const TrainingServices& services, const ProgramProgress::Action& action) {
    state_ = link().state_of_step();
    const Nanoseconds now = clock_.now();
    NodeProbe& node = services.traffic->node();
    node.iteration(now - step_began_, task_.job->batch_size, action.loss);
    node.set(NodeGauge::kIteration, action.iteration + 1);
    step_began_ = now;
    const std::vector<std::uint64_t> stalls = link().take_stalls();
    for (std::uint32_t l = 0; l < stalls.size(); ++l) {
      services.traffic->stalled(LayerIndex(l), stalls[l]);
    }
    services.events->iteration_done(action.iteration, action.loss);
  }

  ProgramParts* const parts_;
  const std::shared_ptr<DataProbe> data_probe_ = std::make_shared<DataProbe>();
  const SystemClock clock_;
  FrameworkTask task_;
  std::vector<float> state_;    ///< of the newest version that the epoch knows
  Iteration backward_of_ = -1;  ///< the iteration whose gradients are being given
  Nanoseconds step_began_{0};
};

}  // namespace

std::unique_ptr<FrameworkJob> ProgramFramework::begin_job() {
  return std::make_unique<ProgramJob>(parts_);
}

absl::Status ProgramFramework::measure(const v1::CalibrateCompute& /*task*/,
                                       const std::atomic<bool>& /*cancelled*/,
                                       v1::CalibrationReport& /*report*/) {
  return absl::UnimplementedError("a program computes its model itself: nothing is measured");
}

void ProgramFramework::job_ended(bool succeeded, const std::string& reason) {
  parts_->link->end(ProgramLink::Result::kEnded, succeeded,
                    succeeded        ? "the job is done"
                    : reason.empty() ? "the job has ended"
                                     : absl::StrCat("the job has ended: ", reason));
  ended_();
}

}  // namespace poseidon
