#include "worker/engine/executor/network_executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/memory/tensor_memory.h"
#include "common/tensor/scan.h"

namespace poseidon {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;
/// Of host_copy_, at least: results are smaller, all else comes in pieces.
constexpr std::int64_t kCopyElements = std::int64_t{1} << 20;

}  // namespace

absl::StatusOr<DeviceMemory> allocate_aligned(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(
      (std::max<std::int64_t>(bytes, 1) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
  void* memory = std::aligned_alloc(kAlignmentBytes, size);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot allocate ", bytes, " bytes of host memory; use a smaller batch or network"));
  }
  std::memset(memory, 0, size);
  return DeviceMemory(memory, [](void* p) { std::free(p); });
}

absl::StatusOr<DeviceMemory> allocate_sendable(std::int64_t bytes) {
  void* memory = allocate_tensor_memory(static_cast<std::size_t>(bytes));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes of host memory for parameters"));
  }
  return DeviceMemory(memory, free_tensor_memory);
}

NetworkExecutor::NetworkExecutor(NetSpec net, const ExecutorOptions& options,
                                 std::unique_ptr<Device> device)
    : net_(std::move(net)), options_(options), device_(std::move(device)) {}

absl::StatusOr<std::unique_ptr<Executor>> NetworkExecutor::create(const NetSpec& net,
                                                                  const ExecutorOptions& options,
                                                                  std::unique_ptr<Device> device) {
  if (options.batch_size < 1 || options.batch_size > kMaxDimension) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch size must be from 1 to ", kMaxDimension, ", got ", options.batch_size));
  }
  POSEIDON_CHECK(device != nullptr, "an executor needs a device");
  std::unique_ptr<NetworkExecutor> executor(new NetworkExecutor(net, options, std::move(device)));
  POSEIDON_RETURN_IF_ERROR(executor->build());
  return executor;
}

absl::Status NetworkExecutor::build() {
  device_->begin_pass();
  const std::int64_t batch = options_.batch_size;
  input_elements_ = element_count(net_.input_shape);
  POSEIDON_ASSIGN_OR_RETURN(input_, device_->allocate(batch * input_elements_ * kFloatBytes));
  if (!device_->shares_host_memory()) {
    POSEIDON_ASSIGN_OR_RETURN(staged_,
                              StagedBatch::create(device_.get(), &times_, batch * input_elements_));
  }
  const std::int64_t label_bytes = batch * static_cast<std::int64_t>(sizeof(std::int32_t));
  POSEIDON_ASSIGN_OR_RETURN(labels_, device_->allocate(label_bytes));
  if (!device_->shares_host_memory()) {
    POSEIDON_ASSIGN_OR_RETURN(host_labels_, device_->allocate_host(label_bytes));
  }
  POSEIDON_RETURN_IF_ERROR(build_parameters());
  find_results();
  nodes_.resize(layers_.size());
  choose_layouts();
  POSEIDON_RETURN_IF_ERROR(build_tensors());
  share_relus();
  POSEIDON_RETURN_IF_ERROR(build_statistics());
  for (std::size_t i = 0; i < nodes_.size(); ++i) POSEIDON_RETURN_IF_ERROR(build_node(i));
  if (!device_->shares_host_memory()) {
    std::int64_t results = nodes_[accuracy_node_].output_elements;
    for (const std::size_t loss : all_losses_) results += nodes_[loss].output_elements;
    host_copy_elements_ = std::max(results, kCopyElements);
    POSEIDON_ASSIGN_OR_RETURN(host_copy_,
                              device_->allocate_host(host_copy_elements_ * kFloatBytes));
  }
  POSEIDON_ASSIGN_OR_RETURN(results_ticket_, device_->make_ticket());
  results_.reserve(all_losses_.size() + 1);
  return absl::OkStatus();
}

absl::Status NetworkExecutor::make_range(std::int64_t elements, ParameterRange& range) {
  range.elements = elements;
  POSEIDON_ASSIGN_OR_RETURN(range.host, device_->allocate_host(elements * kFloatBytes));
  range.host_data = static_cast<float*>(range.host.get());
  range.device_data = range.host_data;
  if (!device_->shares_host_memory()) {
    POSEIDON_ASSIGN_OR_RETURN(range.device, device_->allocate(elements * kFloatBytes));
    range.device_data = floats(range.device);
  }
  return absl::OkStatus();
}

absl::Status NetworkExecutor::build_parameters() {
  for (const std::size_t i : net_.parameter_layers()) {
    const std::int64_t elements = net_.layers[i].parameter_count();
    POSEIDON_RETURN_IF_ERROR(make_range(elements, parameters_.emplace_back()));
    POSEIDON_RETURN_IF_ERROR(make_range(elements, gradients_.emplace_back()));
    factors_.push_back(nullptr);
    POSEIDON_ASSIGN_OR_RETURN(returns_.emplace_back().ticket, device_->make_ticket());
  }
  returning_.reserve(returns_.size());
  // Before the first parameter layer there may be others.
  const std::size_t intervals = returns_.size() + 1;
  // Of each layer at most: parameters up, or two factors down; and, for other layers' hooks, all
  // workers' factors up for a norm and for a step.
  constexpr std::size_t kCopiesPerLayer = 4;
  std::size_t copies = 0;
  if (staged_ != nullptr) {
    copies = returns_.size() * kCopiesPerLayer + staged_->pieces() + 1;
    for (const ParameterRange& range : parameters_) {
      copies += static_cast<std::size_t>(range.elements / kLeastPartElements);
    }
  }
  POSEIDON_ASSIGN_OR_RETURN(times_, PassTimes::create(device_.get(), intervals, copies));
  return absl::OkStatus();
}

absl::Status NetworkExecutor::build_statistics() {
  std::vector<float> initial;
  for (const LayerSpec& layer : net_.layers) {
    for (const ParameterSpec& tensor : layer.statistics) {
      initial.insert(initial.end(), static_cast<std::size_t>(element_count(tensor.shape)),
                     static_cast<float>(tensor.initialiser.value));
    }
  }
  POSEIDON_ASSIGN_OR_RETURN(
      statistics_, device_->allocate(static_cast<std::int64_t>(initial.size()) * kFloatBytes));
  float* next = floats(statistics_);
  for (std::size_t i = 0; i < net_.layers.size(); ++i) {
    if (net_.layers[i].statistics.empty()) continue;
    nodes_[i].statistics = next;
    for (const ParameterSpec& tensor : net_.layers[i].statistics) {
      next += element_count(tensor.shape);
    }
  }
  return write_statistics(initial);
}

absl::Status NetworkExecutor::read_statistics(std::span<float> values) {
  POSEIDON_CHECK(static_cast<std::int64_t>(values.size()) == net_.statistics_count(),
                 "all running statistics");
  if (values.empty()) return absl::OkStatus();
  device_->begin_pass();
  return device_->download(values.data(), statistics_.get(),
                           static_cast<std::int64_t>(values.size_bytes()));
}

absl::Status NetworkExecutor::write_statistics(std::span<const float> values) {
  POSEIDON_CHECK(static_cast<std::int64_t>(values.size()) == net_.statistics_count(),
                 "all running statistics");
  if (values.empty()) return absl::OkStatus();
  device_->begin_pass();
  return device_->upload(statistics_.get(), values.data(),
                         static_cast<std::int64_t>(values.size_bytes()));
}

void NetworkExecutor::find_results() {
  layers_ = net_.layers;
  accuracy_node_ = layers_.size();
  for (std::size_t i = 0; i < net_.layers.size(); ++i) {
    const LayerSpec& layer = net_.layers[i];
    if (layer.type == LayerType::kAccuracy) accuracy_node_ = i;
    if (layer.type != LayerType::kSoftmaxCrossEntropy) continue;
    all_losses_.push_back(i);
    if (!layer.auxiliary) loss_node_ = i;
  }
  if (accuracy_node_ < layers_.size()) return;
  LayerSpec& implied = layers_.emplace_back(net_.layers[loss_node_]);
  implied.name = "accuracy (implied)";
  implied.type = LayerType::kAccuracy;
}

// The device's own where layers alone read the tensor. A fully connected layer's input is what
// other workers get to see (copy_factors).
void NetworkExecutor::choose_layouts() {
  std::vector<bool> is_factor(layers_.size(), false);
  for (const LayerSpec& layer : layers_) {
    if (layer.type != LayerType::kFullyConnected) continue;
    for (const std::size_t input : layer.inputs) {
      if (input != kNetworkInput) is_factor[input] = true;
    }
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (is_factor[i]) continue;
    std::vector<Layout> inputs;
    for (const std::size_t input : layers_[i].inputs) inputs.push_back(layout_of(input));
    nodes_[i].layout = device_->output_layout(layers_[i], inputs);
  }
}

Layout NetworkExecutor::layout_of(std::size_t input) const {
  return input == kNetworkInput ? Layout::kPlain : nodes_[input].layout;
}

absl::Status NetworkExecutor::build_tensors() {
  std::vector<OutputSpace> outputs;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    nodes_[i].output_elements = options_.batch_size * element_count(layers_[i].output_shape);
    const Layout layout = nodes_[i].layout;
    outputs.push_back({nodes_[i].output_elements * bytes_per_element(layout), layout});
  }
  plan_ = plan_tensors(layers_, outputs);
  const MemoryPlan places = plan_memory(plan_.buffers);
  POSEIDON_ASSIGN_OR_RETURN(tensors_, device_->allocate(places.total_bytes));
  const auto pointer = [&](int buffer) -> float* {
    if (buffer == kNoBuffer) return nullptr;
    return floats(tensors_) + places.offsets[static_cast<std::size_t>(buffer)] / kFloatBytes;
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerTensors& tensors = plan_.layers[i];
    Node& node = nodes_[i];
    node.runs_backward = tensors.runs_backward;
    node.output = pointer(tensors.output);
    node.output_gradient = pointer(tensors.output_gradient);
    for (const std::size_t input : layers_[i].inputs) {
      node.inputs.push_back(input == kNetworkInput ? floats(input_) : nodes_[input].output);
    }
    for (std::size_t k = 0; k < tensors.input_gradients.size(); ++k) {
      const auto& [written, added_to] = tensors.input_gradients[k];
      node.input_gradients.push_back(pointer(written));
      if (added_to == kNoBuffer) continue;
      const Node& input = nodes_[layers_[i].inputs[k]];
      node.sums.push_back(
          {pointer(added_to), pointer(written), input.output_elements, input.layout});
    }
  }
  return absl::OkStatus();
}

// Where the plan has both in one place, forward and backward.
void NetworkExecutor::share_relus() {
  std::vector<int> readers(layers_.size(), 0);
  for (const LayerSpec& layer : layers_) {
    for (const std::size_t input : layer.inputs) {
      if (input != kNetworkInput) ++readers[input];
    }
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::size_t input = layers_[i].inputs.front();
    if (layers_[i].type != LayerType::kRelu || input == kNetworkInput || readers[input] != 1)
      continue;
    Node &relu = nodes_[i], &before = nodes_[input];
    if (relu.output != before.output || relu.output_gradient != before.output_gradient) continue;
    before.takes_relu = relu.is_taken = device_->takes_relu(layers_[input]);
  }
}

absl::Status NetworkExecutor::build_node(std::size_t index) {
  const LayerSpec& layer = layers_[index];
  Node& node = nodes_[index];
  std::vector<Layout> input_layouts;
  for (const std::size_t input : layer.inputs) input_layouts.push_back(layout_of(input));
  bool input_needs_gradient = false;
  for (const float* gradient : node.input_gradients) input_needs_gradient |= gradient != nullptr;
  if (!layer.parameters.empty()) {
    int before = 0;
    for (std::size_t i = 0; i < index; ++i) before += layers_[i].parameters.empty() ? 0 : 1;
    node.parameter_layer = before;
  }
  const OperatorOptions options{.batch_size = options_.batch_size,
                                .seed = options_.seed,
                                .wants_input_gradient = input_needs_gradient,
                                .input_layouts = input_layouts,
                                .output_layout = node.layout,
                                .relu = node.takes_relu};
  if (node.is_taken == ReluShare::kBoth) return absl::OkStatus();
  POSEIDON_ASSIGN_OR_RETURN(node.op, device_->make_operator(layer, options));
  return absl::OkStatus();
}

std::span<float> NetworkExecutor::parameters(LayerIndex layer) {
  POSEIDON_CHECK(layer.value() < parameters_.size(), "no such parameter layer");
  const ParameterRange& range = parameters_[layer.value()];
  return {range.host_data, static_cast<std::size_t>(range.elements)};
}

std::span<float> NetworkExecutor::gradients(LayerIndex layer) {
  POSEIDON_CHECK(layer.value() < gradients_.size(), "no such parameter layer");
  const ParameterRange& range = gradients_[layer.value()];
  return {range.host_data, static_cast<std::size_t>(range.elements)};
}

std::shared_ptr<const void> NetworkExecutor::memory(LayerIndex layer) const {
  POSEIDON_CHECK(layer.value() < parameters_.size(), "no such parameter layer");
  return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
      parameters_[layer.value()].host, gradients_[layer.value()].host);
}

absl::Status NetworkExecutor::check(const Batch& batch) const {
  const std::int64_t samples = options_.batch_size;
  if (batch.samples != samples || static_cast<std::int64_t>(batch.labels.size()) != samples ||
      static_cast<std::int64_t>(batch.images.size()) != samples * input_elements_) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch of ", batch.samples, " samples with ", batch.images.size(),
                     " values and ", batch.labels.size(), " labels does not fit network '",
                     net_.name, "', which was set up for ", samples, " samples of ",
                     shape_to_string(net_.input_shape), " values each"));
  }
  if (batch.valid_samples < 1 || batch.valid_samples > samples) {
    return absl::InvalidArgumentError(absl::StrCat("valid samples of a batch must be from 1 to ",
                                                   samples, ", got ", batch.valid_samples));
  }
  for (std::int64_t i = 0; i < batch.valid_samples; ++i) {
    const std::int32_t label = batch.labels[static_cast<std::size_t>(i)];
    if (label >= 0 && label < net_.classes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("label ", label, " of sample ", i, " of the batch is not a class of network '",
                     net_.name, "': classes are 0 to ", net_.classes - 1));
  }
  return absl::OkStatus();
}

ForwardArgs NetworkExecutor::forward_args(const Node& node) const {
  ForwardArgs args;
  args.inputs = node.inputs;
  if (node.parameter_layer >= 0) {
    args.parameters = parameters_[static_cast<std::size_t>(node.parameter_layer)].device_data;
  }
  args.statistics = node.statistics;
  args.output = node.output;
  args.labels = static_cast<const std::int32_t*>(labels_.get());
  args.valid_samples = valid_samples_;
  args.first_sample = first_sample_;
  args.phase = phase_;
  return args;
}

absl::Status NetworkExecutor::forward_node(std::size_t index, const ExecutionHooks& hooks) {
  const Node& node = nodes_[index];
  if (node.parameter_layer >= 0) {
    const LayerIndex layer(static_cast<std::uint32_t>(node.parameter_layer));
    POSEIDON_RETURN_IF_ERROR(times_.end());
    POSEIDON_RETURN_IF_ERROR(bring_parameters(layer, hooks));
    POSEIDON_RETURN_IF_ERROR(times_.begin(layer));
  }
  if (node.is_taken != ReluShare::kNone) return absl::OkStatus();
  return node.op->forward(forward_args(node));
}

absl::StatusOr<ForwardResult> NetworkExecutor::forward(const Batch& batch, Phase phase,
                                                       const ExecutionHooks& hooks) {
  can_backward_ = false;
  has_forward_ = false;
  POSEIDON_RETURN_IF_ERROR(check(batch));
  device_->begin_pass();
  if (!hooks.same_parameters) {
    for (ParameterRange& range : parameters_) range.is_up = false;
  }
  valid_samples_ = batch.valid_samples;
  first_sample_ = batch.first_sample;
  phase_ = phase;
  absl::StatusOr<ForwardResult> result = run_forward(batch, hooks);
  if (!result.ok()) {
    if (staged_ != nullptr) staged_->rest();
    device_->finish().IgnoreError();  // the first error says more
    return result;
  }
  has_forward_ = true;
  can_backward_ = phase == Phase::kTrain;
  return result;
}

absl::StatusOr<ForwardResult> NetworkExecutor::run_forward(const Batch& batch,
                                                           const ExecutionHooks& hooks) {
  POSEIDON_RETURN_IF_ERROR(times_.begin_pass());
  POSEIDON_RETURN_IF_ERROR(bring_batch(batch));
  if (nodes_.front().parameter_layer < 0) POSEIDON_RETURN_IF_ERROR(times_.begin(LayerIndex(0)));
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (runs_in_phase(i)) POSEIDON_RETURN_IF_ERROR(forward_node(i, hooks));
  }
  POSEIDON_RETURN_IF_ERROR(times_.end());
  POSEIDON_ASSIGN_OR_RETURN(const ForwardResult result, collect_result());
  POSEIDON_RETURN_IF_ERROR(device_->finish());
  POSEIDON_RETURN_IF_ERROR(times_.read());
  return result;
}

absl::StatusOr<std::span<const float>> NetworkExecutor::fetch(const void* memory,
                                                              std::int64_t elements) {
  const auto count = static_cast<std::size_t>(elements);
  if (device_->shares_host_memory()) {
    return std::span<const float>(static_cast<const float*>(memory), count);
  }
  POSEIDON_RETURN_IF_ERROR(device_->download(host_copy_.get(), memory, elements * kFloatBytes));
  return std::span<const float>(floats(host_copy_), count);
}

absl::StatusOr<bool> NetworkExecutor::is_finite(const float* memory, std::int64_t elements,
                                                Layout layout) {
  const bool is_narrow = layout == Layout::kBfloat16;
  // A buffer is whole floats long.
  const std::int64_t words = is_narrow ? (elements + 1) / 2 : elements;
  const std::int64_t piece = device_->shares_host_memory() ? words : host_copy_elements_;
  for (std::int64_t first = 0; first < words; first += piece) {
    POSEIDON_ASSIGN_OR_RETURN(const std::span<const float> values,
                              fetch(memory + first, std::min(piece, words - first)));
    if (!is_narrow) {
      if (!all_finite(values)) return false;
      continue;
    }
    const auto bytes = std::as_bytes(values);
    const auto left = static_cast<std::size_t>((elements - 2 * first) * 2);
    if (!all_finite_16(ElementType::kBfloat16, bytes.first(std::min(bytes.size(), left)))) {
      return false;
    }
  }
  return true;
}

bool NetworkExecutor::runs_in_phase(std::size_t index) const {
  return phase_ == Phase::kTrain || !layers_[index].train_only;
}

absl::Status NetworkExecutor::start_result(const Node& node) {
  const std::int64_t elements = node.output_elements / options_.batch_size * valid_samples_;
  const auto count = static_cast<std::size_t>(elements);
  if (device_->shares_host_memory()) {
    results_.emplace_back(node.output, count);
    return absl::OkStatus();
  }
  std::size_t used = 0;
  for (const std::span<const float> result : results_) used += result.size();
  float* const place = floats(host_copy_) + used;
  results_.emplace_back(place, count);
  return device_->start_download(place, node.output, elements * kFloatBytes, *results_ticket_, {});
}

// Summed here, in sample order and in double, so that every device gives the same sum.
absl::StatusOr<ForwardResult> NetworkExecutor::collect_result() {
  results_.clear();
  for (const std::size_t index : all_losses_) {
    if (runs_in_phase(index)) POSEIDON_RETURN_IF_ERROR(start_result(nodes_[index]));
  }
  POSEIDON_RETURN_IF_ERROR(start_result(nodes_[accuracy_node_]));
  POSEIDON_RETURN_IF_ERROR(results_ticket_->wait());
  ForwardResult result;
  result.samples = valid_samples_;
  auto losses = results_.begin();
  for (const std::size_t index : all_losses_) {
    if (!runs_in_phase(index)) continue;
    double sum = 0.0;
    for (const float loss : *losses++) sum += static_cast<double>(loss);
    result.loss_sum += net_.layers[index].loss_weight * sum;
  }
  for (const float hit : results_.back()) result.correct += hit > 0.5f ? 1 : 0;
  return result;
}

absl::Status NetworkExecutor::backward_node(std::size_t index) {
  const Node& node = nodes_[index];
  if (!node.runs_backward || node.is_taken == ReluShare::kBoth) return absl::OkStatus();
  BackwardArgs args;
  args.forward = forward_args(node);
  args.output_gradient = node.output_gradient;
  args.input_gradients = node.input_gradients;
  if (node.parameter_layer >= 0) {
    args.parameter_gradients =
        gradients_[static_cast<std::size_t>(node.parameter_layer)].device_data;
  }
  POSEIDON_RETURN_IF_ERROR(node.op->backward(args));
  for (const Node::Sum& sum : node.sums) {
    POSEIDON_RETURN_IF_ERROR(device_->add(sum.target, sum.addend, sum.elements, sum.layout));
  }
  if (node.parameter_layer < 0) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(times_.end());  // before the copies, which wait for it
  return return_layer(index);
}

absl::Status NetworkExecutor::backward(const ExecutionHooks& hooks) {
  if (!can_backward_) {
    return absl::FailedPreconditionError(
        "backward needs a forward in the training phase just before it");
  }
  can_backward_ = false;
  device_->begin_pass();
  returning_.clear();
  handed_back_ = 0;
  const absl::Status status = run_backward(hooks);
  if (!status.ok()) {
    if (staged_ != nullptr) staged_->rest();
    device_->finish().IgnoreError();  // the first error says more
  }
  return status;
}

absl::Status NetworkExecutor::run_backward(const ExecutionHooks& hooks) {
  POSEIDON_RETURN_IF_ERROR(times_.begin_pass());
  if (staged_ != nullptr) staged_->begin();
  auto layer = static_cast<std::uint32_t>(returns_.size());  // of those below none is back
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    const bool begins = i + 1 == nodes_.size() || nodes_[i + 1].parameter_layer >= 0;
    if (begins && layer > 0) POSEIDON_RETURN_IF_ERROR(times_.begin(LayerIndex(--layer)));
    POSEIDON_RETURN_IF_ERROR(backward_node(i));
    // Each question is a call of the driver's: where a layer has come to the line, and no oftener.
    if (nodes_[i].parameter_layer < 0) continue;
    POSEIDON_RETURN_IF_ERROR(hand_back(hooks, /*wait=*/false));
  }
  POSEIDON_RETURN_IF_ERROR(hand_back(hooks, /*wait=*/true));
  if (staged_ != nullptr) POSEIDON_RETURN_IF_ERROR(staged_->complete());
  POSEIDON_RETURN_IF_ERROR(device_->finish());
  return times_.read();
}

// Outputs share memory, so the forward pass runs once more and each is looked at when it is new.
std::string NetworkExecutor::first_nonfinite_layer() {
  if (!has_forward_) return "";
  std::vector<float> statistics(static_cast<std::size_t>(net_.statistics_count()));
  if (!read_statistics(statistics).ok()) return "";
  const absl::StatusOr<std::string> found = find_nonfinite();
  const absl::Status restored = write_statistics(statistics);
  return found.ok() && restored.ok() ? *found : "";
}

absl::StatusOr<std::string> NetworkExecutor::find_nonfinite() {
  device_->begin_pass();
  POSEIDON_RETURN_IF_ERROR(times_.begin_pass());
  POSEIDON_ASSIGN_OR_RETURN(
      const bool is_input_finite,
      is_finite(floats(input_), input_elements_ * valid_samples_, Layout::kPlain));
  if (!is_input_finite) return "input (data)";
  for (std::size_t i = 0; i < net_.layers.size(); ++i) {
    const Node& node = nodes_[i];
    if (!runs_in_phase(i)) continue;
    if (node.parameter_layer >= 0) {
      const LayerIndex layer(static_cast<std::uint32_t>(node.parameter_layer));
      if (factors_[layer.value()] != nullptr) POSEIDON_RETURN_IF_ERROR(fetch_parameters(layer));
      if (!all_finite(parameters(layer))) return absl::StrCat(net_.layers[i].name, " (parameters)");
    }
    POSEIDON_RETURN_IF_ERROR(forward_node(i, {}));
    POSEIDON_ASSIGN_OR_RETURN(
        const bool is_output_finite,
        is_finite(node.output, node.output_elements / options_.batch_size * valid_samples_,
                  node.layout));
    if (!is_output_finite) return absl::StrCat(net_.layers[i].name, " (output)");
  }
  return "";
}

}  // namespace poseidon
