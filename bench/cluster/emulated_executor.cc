#include "bench/cluster/emulated_executor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "worker/engine/device.h"

namespace poseidon::bench {
namespace {

constexpr std::int64_t kPageBytes = 4096;
constexpr double kStepBytesPerParameter = 20.0;
constexpr double kInputShareOfBackward = 0.5;

/// A range of memory that is mapped, from a file or from nowhere.
class Mapping {
 public:
  static absl::StatusOr<Mapping> make(const std::string& file, std::int64_t bytes) {
    Mapping mapping;
    mapping.bytes_ = static_cast<std::size_t>(bytes);
    Descriptor shared;
    if (!file.empty()) {
      shared = Descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
      if (!shared.is_open() || ::ftruncate(shared.get(), static_cast<off_t>(bytes)) != 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("memory shared by the workers, ", file, ": ", std::strerror(errno)));
      }
    }
    const int flags = file.empty() ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    void* memory = ::mmap(nullptr, mapping.bytes_, PROT_READ | PROT_WRITE, flags, shared.get(), 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot map ", bytes, " bytes for parameters: ", std::strerror(errno)));
    }
    mapping.memory_ = static_cast<float*>(memory);
    return mapping;
  }
  Mapping() = default;
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }

  float* memory() const { return memory_; }

 private:
  float* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

std::int64_t whole_pages(std::int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

class EmulatedExecutor final : public Executor {
 public:
  EmulatedExecutor(const NetSpec& net, const ExecutorOptions& options,
                   const EmulationOptions& emulation)
      : net_(net),
        layers_(net_.parameter_layers()),
        options_(options),
        emulation_(emulation),
        keeps_factors_(layers_.size(), false),
        statistics_(static_cast<std::size_t>(net.statistics_count()), 1.0f) {}

  /// Parameters of all layers, each from a page of its own, then the gradients.
  absl::Status allocate() {
    std::int64_t bytes = 0;
    std::vector<std::int64_t> offsets;
    for (const std::size_t layer : layers_) {
      offsets.push_back(bytes);
      bytes += whole_pages(net_.layers[layer].parameter_count() * kFloatBytes);
    }
    if (emulation_.shared_file.empty()) {
      // What is sent lies where processes of this host can read it, as a real engine's does.
      for (const std::size_t layer : layers_) {
        for (auto* owned : {&parameters_, &gradients_}) {
          POSEIDON_ASSIGN_OR_RETURN(
              DeviceMemory memory,
              allocate_sendable(net_.layers[layer].parameter_count() * kFloatBytes));
          owned->push_back(static_cast<float*>(memory.get()));
          owned_->push_back(std::move(memory));
        }
      }
      return absl::OkStatus();
    }
    POSEIDON_ASSIGN_OR_RETURN(Mapping mapping, Mapping::make(emulation_.shared_file, 2 * bytes));
    mapping_ = std::make_shared<Mapping>(std::move(mapping));
    for (const std::int64_t offset : offsets) {
      parameters_.push_back(mapping_->memory() + offset / kFloatBytes);
      gradients_.push_back(mapping_->memory() + (bytes + offset) / kFloatBytes);
    }
    return absl::OkStatus();
  }

  const NetSpec& net() const override { return net_; }

  std::span<float> parameters(LayerIndex layer) override {
    return {parameters_[layer.value()], elements(layer)};
  }

  std::span<float> gradients(LayerIndex layer) override {
    if (keeps_factors_[layer.value()]) return {};
    return {gradients_[layer.value()], elements(layer)};
  }

  std::shared_ptr<const void> memory(LayerIndex) const override {
    if (mapping_ != nullptr) return mapping_;
    return owned_;
  }

  absl::Status read_statistics(std::span<float> values) override {
    std::copy(statistics_.begin(), statistics_.end(), values.begin());
    return absl::OkStatus();
  }

  absl::Status write_statistics(std::span<const float> values) override {
    statistics_.assign(values.begin(), values.end());
    return absl::OkStatus();
  }

  absl::StatusOr<ForwardResult> forward(const Batch& batch, Phase phase,
                                        const ExecutionHooks& hooks) override {
    if (phase == Phase::kTest) {
      return absl::UnimplementedError(
          "an emulated device cannot test: set test_every_iterations to 0 and leave data.test out");
    }
    if (batch.samples != options_.batch_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("a batch of ", batch.samples, " samples, not of ", options_.batch_size));
    }
    const auto layers = static_cast<std::uint32_t>(layers_.size());
    for (std::uint32_t l = 0; l < layers; ++l) {
      const Nanoseconds asked = emulation_.clock->now();
      if (emulation_.overlap == Overlap::kAll) {
        POSEIDON_RETURN_IF_ERROR(await_parameters(hooks, l, l + 1));
      } else if (l == 0) {
        POSEIDON_RETURN_IF_ERROR(await_parameters(hooks, 0, layers));
      }
      const Nanoseconds now = emulation_.clock->now();
      const Nanoseconds takes = slowed(profile(l).forward_s);
      // The first layer of all begins a timeline.
      const bool waited = now - asked > kHostDelay || timeline_.free_at() == Nanoseconds{0};
      emulation_.sleep_until(waited ? timeline_.run_after(now, takes) : timeline_.follow(takes));
    }
    ForwardResult result;
    result.samples = batch.valid_samples;
    result.loss_sum = static_cast<double>(batch.valid_samples);
    return result;
  }

  absl::Status backward(const ExecutionHooks& hooks) override {
    for (std::uint32_t l = static_cast<std::uint32_t>(layers_.size()); l-- > 0;) {
      const double share = keeps_factors_[l] ? kInputShareOfBackward : 1.0;
      emulation_.sleep_until(timeline_.follow(slowed(share * profile(l).backward_s)));
      if (emulation_.overlap != Overlap::kNone) hand_over(hooks, l);
    }
    if (emulation_.overlap == Overlap::kNone) {
      for (std::uint32_t l = static_cast<std::uint32_t>(layers_.size()); l-- > 0;)
        hand_over(hooks, l);
    }
    return absl::OkStatus();
  }

  absl::Status keep_factors(LayerIndex layer, int /*optimizer_slots*/) override {
    const LayerSpec& spec = net_.layers[layers_[layer.value()]];
    if (spec.type != LayerType::kFullyConnected) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer '", spec.name, "' has no factors: it is no fully connected layer"));
    }
    keeps_factors_[layer.value()] = true;
    return absl::OkStatus();
  }

  absl::StatusOr<FloatBuffer> allocate_factors(std::int64_t elements) override {
    return FloatBuffer::sendable(elements);
  }

  /// Whatever is there, which is zeros: as many bytes as any others.
  absl::Status copy_factors(LayerIndex /*layer*/, std::span<float> /*output_gradient*/,
                            std::span<float> /*input*/) override {
    return absl::OkStatus();
  }

  absl::Status step_from_factors(LayerIndex layer, const FactorStep& step) override {
    run_now(product_s(layer, step.inputs.size()) + kStepBytesPerParameter *
                                                       static_cast<double>(elements(layer)) /
                                                       emulation_.profile.device_bytes_per_s);
    return absl::OkStatus();
  }

  absl::StatusOr<FactorSquares> measure_factors(LayerIndex layer,
                                                std::span<const float> /*output_gradients*/,
                                                std::span<const float> inputs) override {
    run_now(product_s(layer, inputs.size()));
    return FactorSquares{};
  }
  absl::StatusOr<FactorSquares> measure_parameters(LayerIndex /*layer*/) override {
    return FactorSquares{};
  }

  // There is no device memory; holding values costs a GPU nothing.
  absl::Status fetch_parameters(LayerIndex /*layer*/) override { return absl::OkStatus(); }
  absl::Status read_state(LayerIndex /*layer*/, const StateRange& /*range*/,
                          std::span<float> values) override {
    std::ranges::fill(values, 0.0f);
    return absl::OkStatus();
  }
  absl::Status write_state(LayerIndex /*layer*/, const StateRange& /*range*/,
                           std::span<const float> /*values*/) override {
    return absl::OkStatus();
  }
  absl::Status hold_state(LayerIndex /*layer*/, std::span<const StateRange> /*ranges*/) override {
    return absl::OkStatus();
  }
  absl::Status read_held_state(LayerIndex layer, const StateRange& range,
                               std::span<float> values) override {
    return read_state(layer, range, values);
  }

  std::string first_nonfinite_layer() override { return ""; }

 private:
  /// Of the layers [first, last).
  static absl::Status await_parameters(const ExecutionHooks& hooks, std::uint32_t first,
                                       std::uint32_t last) {
    for (std::uint32_t l = first; l < last && hooks.before_forward; ++l) {
      POSEIDON_RETURN_IF_ERROR(hooks.before_forward(LayerIndex(l), /*part_arrived=*/{}));
    }
    return absl::OkStatus();
  }

  static void hand_over(const ExecutionHooks& hooks, std::uint32_t layer) {
    if (hooks.after_backward) hooks.after_backward(LayerIndex(layer));
  }

  const LayerProfile& profile(std::uint32_t layer) const {
    return emulation_.profile.layers[layer];
  }

  std::size_t elements(LayerIndex layer) const {
    POSEIDON_CHECK(layer.value() < layers_.size(), "no such parameter layer");
    return static_cast<std::size_t>(net_.layers[layers_[layer.value()]].parameter_count());
  }

  Nanoseconds slowed(double seconds) const {
    return Nanoseconds(static_cast<std::int64_t>(seconds * emulation_.slow * 1e9));
  }

  double product_s(LayerIndex layer, std::size_t stacked_inputs) const {
    const LayerSpec& spec = net_.layers[layers_[layer.value()]];
    return 2.0 * static_cast<double>(stacked_inputs) *
           static_cast<double>(spec.output_shape.front()) / emulation_.profile.device_flops;
  }

  /// The caller waits for it.
  void run_now(double seconds) {
    emulation_.sleep_until(timeline_.run_after(emulation_.clock->now(), slowed(seconds)));
  }

  const NetSpec net_;
  const std::vector<std::size_t> layers_;
  const ExecutorOptions options_;
  const EmulationOptions emulation_;
  DeviceTimeline timeline_;
  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<std::vector<DeviceMemory>> owned_ = std::make_shared<std::vector<DeviceMemory>>();
  std::vector<float*> parameters_, gradients_;  ///< by LayerIndex
  std::vector<bool> keeps_factors_;             ///< by LayerIndex
  std::vector<float> statistics_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> make_emulated_executor(
    const NetSpec& net, const ExecutorOptions& options, const EmulationOptions& emulation) {
  POSEIDON_RETURN_IF_ERROR(check_profile_fits(emulation.profile, net));
  if (options.batch_size != emulation.profile.batch_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the profile of ", emulation.profile.network, " is of batches of ",
                     emulation.profile.batch_size, ", the job's are of ", options.batch_size));
  }
  auto executor = std::make_unique<EmulatedExecutor>(net, options, emulation);
  POSEIDON_RETURN_IF_ERROR(executor->allocate());
  return executor;
}

}  // namespace poseidon::bench
