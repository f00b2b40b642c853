#include "tests/support/layer_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"

namespace poseidon::testing {
namespace {

/// A tensor in a layout, of samples with `channels` channels.
struct Placement {
  Layout layout;
  std::int64_t channels, plane;

  /// Where element `i` of the plain tensor lies.
  std::size_t of(std::size_t i) const {
    if (!has_channels_last(layout)) return i;
    const auto c = static_cast<std::size_t>(channels), p = static_cast<std::size_t>(plane);
    return i / (c * p) * c * p + i % p * c + i / p % c;
  }
};

template <typename Element>
std::vector<unsigned char> bytes_of(const std::vector<Element>& elements) {
  std::vector<unsigned char> bytes(elements.size() * sizeof(Element));
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}
template <typename Element>
std::vector<Element> elements_of(const std::vector<unsigned char>& bytes) {
  std::vector<Element> elements(bytes.size() / sizeof(Element));
  if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

std::vector<unsigned char> placed(const std::vector<float>& values, const Placement& at) {
  if (at.layout != Layout::kBfloat16) {
    std::vector<float> out(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) out[at.of(i)] = values[i];
    return bytes_of(out);
  }
  std::vector<std::uint16_t> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    POSEIDON_CHECK(bits % 0x10000 == 0 || std::isnan(values[i]), "a value of bfloat16");
    out[at.of(i)] = static_cast<std::uint16_t>(bits >> 16);
  }
  return bytes_of(out);
}

std::vector<float> plain_of(const std::vector<unsigned char>& bytes, const Placement& at) {
  std::vector<float> in;
  if (at.layout != Layout::kBfloat16) {
    in = elements_of<float>(bytes);
  } else {
    for (const std::uint16_t bits : elements_of<std::uint16_t>(bytes)) {
      in.push_back(std::bit_cast<float>(std::uint32_t{bits} << 16));
    }
  }
  std::vector<float> values(in.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = in[at.of(i)];
  return values;
}

// A buffer in the device's memory with room behind it, so that a write past the end is seen.
class Buffer {
 public:
  Buffer(Device& device, std::size_t bytes) : device_(device), bytes_(bytes) {
    auto memory = device.allocate(static_cast<std::int64_t>(bytes + kGuardBytes));
    EXPECT_TRUE(memory.ok()) << memory.status();
    if (!memory.ok()) return;
    memory_ = *std::move(memory);
    const std::vector<unsigned char> rubbish(bytes + kGuardBytes, kRubbish);
    upload(rubbish.data(), rubbish.size());
  }
  Buffer(Device& device, const std::vector<float>& from) : Buffer(device, from.size() * 4) {
    upload(from.data(), bytes_);
  }
  void upload(const void* from, std::size_t bytes) {
    if (bytes == 0) return;  // an empty vector has no address to copy from
    if (!is_made()) return;
    const absl::Status status =
        device_.upload(memory_.get(), from, static_cast<std::int64_t>(bytes));
    EXPECT_TRUE(status.ok()) << status;
  }
  /// Else the test has failed.
  bool is_made() const { return memory_ != nullptr; }
  float* data() { return static_cast<float*>(memory_.get()); }
  std::vector<unsigned char> read_bytes() {
    std::vector<unsigned char> all(bytes_ + kGuardBytes, kRubbish);
    const absl::Status status =
        device_.download(all.data(), memory_.get(), static_cast<std::int64_t>(all.size()));
    EXPECT_TRUE(status.ok()) << status;
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(bytes_);
    EXPECT_TRUE(std::all_of(end, all.end(), [](unsigned char c) { return c == kRubbish; }))
        << "written past the end";
    all.erase(end, all.end());
    return all;
  }
  std::vector<float> read() {
    const std::vector<unsigned char> bytes = read_bytes();
    std::vector<float> result(bytes.size() / 4);
    if (!bytes.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }

 private:
  static constexpr std::size_t kGuardBytes = 256;
  static constexpr unsigned char kRubbish = 0xFF;  // as numbers these are NaN
  Device& device_;
  std::size_t bytes_;
  DeviceMemory memory_{nullptr, nullptr};
};

// Such a buffer of a tensor between layers.
class Tensor {
 public:
  Tensor(Device& device, const Shape& shape, std::size_t elements, Layout layout)
      : placement_{layout, shape.front(), element_count(shape) / shape.front()},
        buffer_(device, elements * static_cast<std::size_t>(bytes_per_element(layout))) {}
  Tensor(Device& device, const Shape& shape, const std::vector<float>& values, Layout layout)
      : Tensor(device, shape, values.size(), layout) {
    const auto bytes = placed(values, placement_);
    buffer_.upload(bytes.data(), bytes.size());
  }
  bool is_made() const { return buffer_.is_made(); }
  float* data() { return buffer_.data(); }
  std::vector<float> read() { return plain_of(buffer_.read_bytes(), placement_); }

 private:
  const Placement placement_;
  Buffer buffer_;
};

/// Whether an image whose layout is for a device to choose.
bool is_image(const Shape& shape) { return shape.size() == 3 && shape[1] * shape[2] > 1; }

/// Of a layer that could not be run, which has failed the test: NaN wherever there could be a
/// value, so that who looks at one goes on.
LayerResult no_result(const LayerData& data) {
  const auto unknown = [](const std::vector<float>& like) {
    return std::vector<float>(like.size(), std::numeric_limits<float>::quiet_NaN());
  };
  return {.output = unknown(data.output_gradient),
          .statistics = unknown(data.statistics),
          .input_gradient = unknown(data.input),
          .parameter_gradients = unknown(data.parameters)};
}

}  // namespace

LayerSpec layer_on(nlohmann::json json, const Shape& shape) {
  const std::string type = json.at("type");
  json["name"] = "x";
  nlohmann::json net = {{"name", "harness"}, {"input", shape}, {"layers", nlohmann::json::array()}};
  if (type == "softmax_cross_entropy" || type == "accuracy") {
    net["layers"] = {{{"name", "scores"}, {"type", "fully_connected"}, {"outputs", shape[0]}}};
    json["inputs"] = {"scores"};
    net["layers"].push_back(json);
    if (type == "accuracy") {
      net["layers"].push_back(
          {{"name", "loss"}, {"type", "softmax_cross_entropy"}, {"inputs", {"scores"}}});
    }
  } else {
    if (type == "add" || type == "concat") json["inputs"] = {"input", "input"};
    net["layers"].push_back(json);
    net["layers"].push_back({{"name", "scores"}, {"type", "fully_connected"}, {"outputs", 2}});
    net["layers"].push_back({{"name", "loss"}, {"type", "softmax_cross_entropy"}});
  }
  const auto spec = parse_network(net);
  POSEIDON_CHECK(spec.ok(), std::string(spec.status().message()).c_str());
  for (const LayerSpec& layer : spec->layers) {
    if (layer.name == "x") return layer;
  }
  POSEIDON_CHECK(false, "the layer is in its network");
  return {};
}

double reduction_length(const LayerSpec& layer, std::int64_t batch) {
  if (layer.type == LayerType::kBatchNorm) {
    // Sums over a channel are in double; what is left are a few roundings of values that are
    // divided by a deviation, which for uniform values in [-1, 1) is about 0.6 but for few of them
    // smaller.
    return 32.0;
  }
  if (layer.parameters.empty()) {
    // Windows (pooling, both ways), channels (LRN) or classes; products of a few roundings each.
    return static_cast<double>(
        std::max({layer.kernel_h * layer.kernel_w, 4 * layer.local_size, std::int64_t{16}}));
  }
  const Shape& weight = layer.parameters.front().shape;
  const std::int64_t outputs = layer.output_shape.front();
  const std::int64_t positions = batch * (element_count(layer.output_shape) / outputs);
  const std::int64_t fan_in = element_count(weight) / weight[0];
  const std::int64_t fan_out = outputs / layer.groups * layer.kernel_h * layer.kernel_w;
  return static_cast<double>(std::max({fan_in + 1, positions, fan_out, outputs}));
}

LayerData draw_layer_data(const LayerSpec& layer, std::int64_t batch, std::uint64_t seed) {
  LayerData data;
  data.valid_samples = batch;
  data.input = values(mix_seed(seed, 0), batch * element_count(layer.input_shape));
  for (std::size_t i = 0; i < layer.parameters.size(); ++i) {
    const auto tensor = values(mix_seed(seed, 1 + i), element_count(layer.parameters[i].shape));
    data.parameters.insert(data.parameters.end(), tensor.begin(), tensor.end());
  }
  data.output_gradient = values(mix_seed(seed, 3), batch * element_count(layer.output_shape));
  SplitMix64 random(mix_seed(seed, 4));
  const auto classes = static_cast<float>(layer.input_shape.front());
  for (std::int64_t i = 0; i < batch; ++i) {
    data.labels.push_back(static_cast<std::int32_t>(random.uniform() * classes));
  }
  std::int64_t statistics = 0;
  for (const ParameterSpec& tensor : layer.statistics) statistics += element_count(tensor.shape);
  data.statistics = values(mix_seed(seed, 5), statistics);
  for (float& value : data.statistics) value = 1.5f + value;
  return data;
}

LayerResult run_layer(Device& device, const LayerSpec& layer, std::int64_t batch,
                      const LayerData& data, bool wants_input_gradient) {
  device.begin_pass();
  const std::vector<Layout> input_layouts(layer.inputs.size(), data.input_layout);
  auto op = device.make_operator(layer, {.batch_size = batch,
                                         .wants_input_gradient = wants_input_gradient,
                                         .input_layouts = input_layouts,
                                         .output_layout = data.output_layout,
                                         .relu = data.relu});
  EXPECT_TRUE(op.ok()) << op.status();
  if (!op.ok()) return no_result(data);
  Tensor input(device, layer.input_shape, data.input, data.input_layout);
  Tensor input_gradient(device, layer.input_shape, data.input.size(), data.input_layout);
  const std::size_t outputs = data.output_gradient.size();
  Tensor output(device, layer.output_shape, outputs, data.output_layout);
  Tensor output_gradient(device, layer.output_shape, data.output_gradient, data.output_layout);
  Buffer parameters(device, data.parameters), statistics(device, data.statistics);
  Buffer parameter_gradients(device, data.parameters.size() * 4);
  Buffer labels(device, data.labels.size() * 4);
  labels.upload(data.labels.data(), data.labels.size() * 4);
  for (const Buffer* buffer : {&parameters, &statistics, &parameter_gradients, &labels}) {
    if (!buffer->is_made()) return no_result(data);
  }
  for (const Tensor* tensor : {&input, &input_gradient, &output, &output_gradient}) {
    if (!tensor->is_made()) return no_result(data);
  }

  const std::vector<const float*> inputs(layer.inputs.size(), input.data());
  BackwardArgs args;
  args.forward.inputs = inputs;
  args.forward.parameters = parameters.data();
  args.forward.statistics = statistics.data();
  args.forward.output = output.data();
  args.forward.labels = reinterpret_cast<const std::int32_t*>(labels.data());
  args.forward.valid_samples = data.valid_samples;
  args.forward.first_sample = data.first_sample;
  args.forward.phase = data.phase;
  const absl::Status forward = (*op)->forward(args.forward);
  EXPECT_TRUE(forward.ok()) << "forward: " << forward;
  if (!forward.ok()) return no_result(data);
  LayerResult result;
  result.output = output.read();
  result.statistics = statistics.read();
  if (layer.type == LayerType::kAccuracy || data.phase == Phase::kTest) return result;
  args.output_gradient = output_gradient.data();
  args.parameter_gradients = parameter_gradients.data();
  const std::vector<float*> input_gradients(layer.inputs.size(),
                                            wants_input_gradient ? input_gradient.data() : nullptr);
  args.input_gradients = input_gradients;
  const absl::Status backward = (*op)->backward(args);
  EXPECT_TRUE(backward.ok()) << "backward: " << backward;
  if (!backward.ok()) return no_result(data);
  if (wants_input_gradient) result.input_gradient = input_gradient.read();
  result.parameter_gradients = parameter_gradients.read();
  EXPECT_EQ(parameters.read(), data.parameters) << "inputs must not be written";
  EXPECT_EQ(input.read(), data.input) << "inputs must not be written";
  return result;
}

std::vector<std::pair<Layout, Layout>> layouts_of(const Device& device, const LayerSpec& layer) {
  std::vector<std::pair<Layout, Layout>> result = {{Layout::kPlain, Layout::kPlain}};
  const auto add = [&](Layout input) {
    const std::vector<Layout> inputs(layer.inputs.size(), input);
    const Layout output = device.output_layout(layer, inputs);
    if (has_channels_last(output)) result.emplace_back(input, output);
    // What a fully connected layer reads is plain.
    if (has_channels_last(input)) result.emplace_back(input, Layout::kPlain);
  };
  add(Layout::kPlain);
  static const LayerSpec convolution =
      layer_on({{"type", "convolution"}, {"outputs", 8}, {"kernel", 1}}, {8, 2, 2});
  const Layout own = device.output_layout(convolution, std::vector<Layout>{Layout::kPlain});
  if (has_channels_last(own) && is_image(layer.input_shape)) add(own);
  return result;
}

::testing::AssertionResult all_near(const std::vector<float>& got, const std::vector<float>& wanted,
                                    double tolerance) {
  if (got.size() != wanted.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, wanted " << wanted.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - wanted[i]);
    if (difference <= tolerance) continue;  // false for NaN
    return ::testing::AssertionFailure() << "element " << i << " is " << got[i] << ", wanted "
                                         << wanted[i] << " within " << tolerance;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace poseidon::testing
