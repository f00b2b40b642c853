#include "worker/engine/buffer_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "worker/engine/device.h"

namespace poseidon {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;
constexpr double kMostBytes = 0x1.0p60;

/// Whether a layer's backward reads what its forward read. (None reads what it wrote.)
bool backward_reads_inputs(LayerType type) {
  switch (type) {
    case LayerType::kAdd:
    case LayerType::kConcat:
    case LayerType::kDropout:
    case LayerType::kAccuracy:
      return false;
    default:
      return true;
  }
}

// Outputs and gradients that share memory are one lifetime; `output_of` and `gradient_of` say
// which.
class Planner {
 public:
  Planner(const NetSpec& net, std::int64_t batch_size)
      : net_(net), batch_size_(batch_size), end_(2 * static_cast<std::int64_t>(net.layers.size())) {
    plan_.layers.resize(net.layers.size());
    readers_.resize(net.layers.size());
    output_of_.resize(net.layers.size(), kNone);
    gradient_of_.resize(net.layers.size(), kNone);
    written_.resize(net.layers.size(), false);
  }

  BufferPlan plan() {
    for (std::size_t i = 0; i < net_.layers.size(); ++i) {
      for (const std::size_t input : net_.layers[i].inputs) {
        if (input != kNetworkInput) readers_[input].push_back(i);
      }
    }
    for (std::size_t i = 0; i < net_.layers.size(); ++i) find_backward(i);
    for (std::size_t i = 0; i < net_.layers.size(); ++i) {
      add_output(i);
      if (plan_.layers[i].runs_backward) add_gradient(i);
    }
    for (std::size_t i = net_.layers.size(); i-- > 0;) add_addends(i);
    const std::vector<std::int64_t> places = place_lifetimes(lifetimes_, &plan_.bytes);
    const auto place = [&](std::size_t lifetime) {
      return lifetime == kNone ? kNoPlace : places[lifetime];
    };
    for (std::size_t i = 0; i < net_.layers.size(); ++i) {
      plan_.layers[i].output = place(output_of_[i]);
      plan_.layers[i].output_gradient = place(gradient_of_[i]);
      for (std::int64_t& addend : plan_.layers[i].addends) {
        if (addend != kNoPlace) addend = places[static_cast<std::size_t>(addend)];
      }
    }
    return std::move(plan_);
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::int64_t backward_time(std::size_t layer) const {
    return end_ - static_cast<std::int64_t>(layer);
  }

  void find_backward(std::size_t i) {
    const LayerSpec& layer = net_.layers[i];
    bool input_needs_gradient = false;
    for (const std::size_t input : layer.inputs) {
      input_needs_gradient |= input != kNetworkInput && plan_.layers[input].runs_backward;
    }
    plan_.layers[i].runs_backward =
        layer.type != LayerType::kAccuracy && (input_needs_gradient || !layer.parameters.empty());
    plan_.layers[i].elements = batch_size_ * element_count(layer.output_shape);
  }

  // The input whose memory the layer's output takes, or kNetworkInput. Its only reader is this
  // layer, so only the backward of layers that shared the memory before may still read it: that of
  // a ReLU, which needs to know no more than where its output was positive. ReLU and dropout leave
  // that as it is (what dropout sets to zero has no gradient), a sum does not.
  std::size_t overwritten_input(std::size_t i) const {
    const LayerSpec& layer = net_.layers[i];
    if (!computes_in_place(layer.type)) return kNetworkInput;
    for (std::size_t k = 0; k < std::min<std::size_t>(layer.inputs.size(), 2); ++k) {
      if (k == 1 && layer.inputs.size() > 2) break;
      const std::size_t input = layer.inputs[k];
      if (input == kNetworkInput || readers_[input].size() > 1) continue;
      const bool is_read_again = lifetimes_[output_of_[input]].last > end_ / 2;
      if (layer.type != LayerType::kAdd || !is_read_again) return input;
    }
    return kNetworkInput;
  }

  void add_output(std::size_t i) {
    const auto now = static_cast<std::int64_t>(i);
    std::int64_t last = end_ / 2;
    for (const std::size_t reader : readers_[i]) {
      const LayerType type = net_.layers[reader].type;
      if (!plan_.layers[reader].runs_backward || !backward_reads_inputs(type)) continue;
      last = std::max(last, type == LayerType::kFullyConnected ? end_ + 1 : backward_time(reader));
    }
    overwritten_.push_back(overwritten_input(i));
    if (const std::size_t input = overwritten_[i]; input != kNetworkInput) {
      output_of_[i] = output_of_[input];
      Lifetime& lifetime = lifetimes_[output_of_[i]];
      lifetime.last = std::max(lifetime.last, last);
      if (net_.layers[i].type == LayerType::kAdd) {
        for (std::size_t before = 0; before < i; ++before) {
          if (output_of_[before] == output_of_[i]) plan_.layers[before].output_stays = false;
        }
      }
      return;
    }
    output_of_[i] = add(i, now, last);
  }

  void add_gradient(std::size_t i) {
    if (net_.layers[i].type == LayerType::kSoftmaxCrossEntropy) return;
    std::int64_t first = backward_time(i);
    for (const std::size_t reader : readers_[i]) {
      if (plan_.layers[reader].runs_backward) first = std::min(first, backward_time(reader));
    }
    const std::int64_t last =
        net_.layers[i].type == LayerType::kFullyConnected ? end_ + 1 : backward_time(i);
    const std::size_t input = overwritten_[i];
    if (input != kNetworkInput && plan_.layers[input].runs_backward) {
      gradient_of_[i] = gradient_of_[input];
      Lifetime& lifetime = lifetimes_[gradient_of_[i]];
      lifetime.first = std::min(lifetime.first, first);
      lifetime.last = std::max(lifetime.last, last);
      return;
    }
    gradient_of_[i] = add(i, first, last);
  }

  // In backward order, the first reader of an output overwrites its gradient and the others add.
  void add_addends(std::size_t i) {
    BufferPlan::Layer& layer = plan_.layers[i];
    for (const std::size_t input : net_.layers[i].inputs) {
      std::int64_t addend = kNoPlace;
      if (layer.runs_backward && input != kNetworkInput && plan_.layers[input].runs_backward) {
        if (written_[input]) {
          addend = static_cast<std::int64_t>(add(input, backward_time(i), backward_time(i)));
        }
        written_[input] = true;
      }
      layer.addends.push_back(addend);
    }
  }

  std::size_t add(std::size_t layer, std::int64_t first, std::int64_t last) {
    const auto bytes = plan_.layers[layer].elements * static_cast<std::int64_t>(sizeof(float));
    lifetimes_.push_back({.bytes = bytes, .first = first, .last = last});
    return lifetimes_.size() - 1;
  }

  const NetSpec& net_;
  const std::int64_t batch_size_;
  const std::int64_t end_;
  BufferPlan plan_;
  std::vector<Lifetime> lifetimes_;
  std::vector<std::vector<std::size_t>> readers_;     // by layer
  std::vector<std::size_t> output_of_, gradient_of_;  // by layer: index into lifetimes_
  std::vector<std::size_t> overwritten_;              // by layer: input, or kNetworkInput
  std::vector<bool> written_;                         // by layer, while addends are added
};

}  // namespace

std::vector<std::int64_t> place_lifetimes(std::span<const Lifetime> lifetimes,
                                          std::int64_t* total_bytes) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  std::vector<std::int64_t> places(lifetimes.size(), 0);
  std::vector<std::size_t> placed;  // ascending by place
  *total_bytes = 0;
  for (const std::size_t i : order) {
    const Lifetime& own = lifetimes[i];
    const std::int64_t bytes =
        (own.bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    std::int64_t at = 0;
    for (const std::size_t other : placed) {
      if (lifetimes[other].last < own.first || lifetimes[other].first > own.last) continue;
      if (places[other] >= at + bytes) break;
      const std::int64_t other_end = places[other] + lifetimes[other].bytes;
      at = std::max(at, (other_end + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
    }
    places[i] = at;
    *total_bytes = std::max(*total_bytes, at + bytes);
    const auto after =
        std::upper_bound(placed.begin(), placed.end(), at,
                         [&](std::int64_t value, std::size_t p) { return value < places[p]; });
    placed.insert(after, i);
  }
  return places;
}

absl::StatusOr<BufferPlan> plan_buffers(const NetSpec& net, std::int64_t batch_size) {
  double bytes = 0.0;
  for (const LayerSpec& layer : net.layers) {
    bytes += 4.0 * sizeof(float) * static_cast<double>(batch_size) *
             static_cast<double>(element_count(layer.output_shape));
  }
  if (bytes > kMostBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("network '", net.name, "' with batch size ", batch_size,
                     " needs more memory than any machine has; use a smaller batch or network"));
  }
  return Planner(net, batch_size).plan();
}

}  // namespace poseidon
