#include "coordinator/planning/cost/iteration_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "common/base/check.h"
#include "common/transport/paced_transport.h"

namespace poseidon {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Large layers are cut into stripes; all layers together into about this many, which bounds the
/// work.
constexpr double kMaxStripes = 64.0;

/// Something that serves one job at a time, the most urgent (lowest key) first, preemptively.
class PriorityServer {
 public:
  explicit PriorityServer(std::size_t keys) : remaining_s_(keys, 0.0) {}

  void add(std::uint32_t key, double work_s, double now) {
    advance(now);
    remaining_s_[key] = work_s;
    work_left_s_ += work_s;
    waiting_.push_back(key);
    std::push_heap(waiting_.begin(), waiting_.end(), std::greater<>());
  }
  /// Of all jobs together.
  double work_left_s(double now) {
    advance(now);
    return work_left_s_;
  }
  double next_end() const { return waiting_.empty() ? kNever : since_ + remaining_s_[waiting_[0]]; }
  /// Ends the job that next_end() spoke of.
  std::uint32_t finish(double now) {
    advance(now);
    std::pop_heap(waiting_.begin(), waiting_.end(), std::greater<>());
    const std::uint32_t key = waiting_.back();
    waiting_.pop_back();
    if (waiting_.empty()) work_left_s_ = 0.0;  // whatever rounding says
    return key;
  }

 private:
  void advance(double now) {
    if (!waiting_.empty()) {
      double& left = remaining_s_[waiting_[0]];
      left = std::max(0.0, left - (now - since_));
      work_left_s_ = std::max(0.0, work_left_s_ - (now - since_));
    }
    since_ = now;
  }

  double work_left_s_ = 0.0;
  std::vector<double> remaining_s_;     ///< by key
  std::vector<std::uint32_t> waiting_;  ///< heap of keys
  double since_ = 0.0;                  ///< remaining_s_ of the first is as of then
};

/// A part of a layer that travels as a whole. Keys of its jobs: 2 i down, 2 i + 1 up, so that the
/// transfer that is nearer to its end goes first.
struct Piece {
  std::uint32_t layer = 0;
  double bytes = 0.0;
  bool factors = false;
  double skew_s = 0.0;  ///< what its fullest server needs longer than the average, each way
};

class Player {
 public:
  Player(const IterationModel& model, absl::Span<const Scheme> schemes);
  IterationPrediction play();

 private:
  enum class Kernel { kNone, kBackward, kRebuild, kForward };
  void cut(std::uint32_t layer);
  void start_kernel();
  void run(Kernel kernel, std::uint32_t layer, double seconds);
  void kernel_done();
  void release(std::uint32_t key);
  void enter(std::uint32_t key);
  double link_s_per_byte(std::size_t link, std::uint32_t key) const;
  void carried(std::uint32_t key);
  void after_delay(std::uint32_t key, double delay_s);
  void arrived(std::uint32_t key);
  void landed(std::uint32_t layer) {
    if (--missing_pieces_[layer] == 0) prediction_.sync_s[layer] = now_ - backward_end_s_[layer];
  }

  const IterationModel& model_;
  const absl::Span<const Scheme> schemes_;
  std::vector<Piece> pieces_;                  ///< by layer, then position
  std::vector<std::uint32_t> first_piece_;     ///< by layer, and one past the end
  std::vector<std::uint32_t> missing_pieces_;  ///< by layer: not landed
  std::vector<double> backward_end_s_;         ///< by layer
  std::vector<std::uint32_t> links_left_;      ///< by key: links that still carry it
  std::vector<PriorityServer> links_;
  std::optional<PriorityServer> sums_;
  /// Keys from here on are of pieces that wait to enter their links, not to arrive.
  std::uint32_t first_entry() const { return static_cast<std::uint32_t>(2 * pieces_.size()); }
  using Delay = std::pair<double, std::uint32_t>;  ///< (arrival, key)
  std::priority_queue<Delay, std::vector<Delay>, std::greater<>> delays_;

  double now_ = 0.0;
  Kernel kernel_ = Kernel::kNone;
  std::uint32_t kernel_layer_ = 0;
  double kernel_end_ = kNever;
  std::uint32_t backward_left_ = 0;
  std::uint32_t next_forward_ = 0;
  std::deque<std::uint32_t> rebuilds_;  ///< layers whose factors are all in
  double idle_since_ = 0.0;
  IterationPrediction prediction_;
};

Player::Player(const IterationModel& model, absl::Span<const Scheme> schemes)
    : model_(model),
      schemes_(schemes),
      missing_pieces_(model.layers.size(), 0),
      backward_end_s_(model.layers.size(), 0.0),
      backward_left_(static_cast<std::uint32_t>(model.layers.size())) {
  POSEIDON_CHECK(schemes.size() == model.layers.size(), "a scheme for every layer");
  for (std::uint32_t layer = 0; layer < model.layers.size(); ++layer) cut(layer);
  first_piece_.push_back(static_cast<std::uint32_t>(pieces_.size()));
  links_left_.assign(2 * pieces_.size(), 0);
  links_.assign(model.links.size(), PriorityServer(2 * pieces_.size()));
  sums_.emplace(2 * pieces_.size());
  prediction_.stall_s.assign(model.layers.size(), 0.0);
  prediction_.sync_s.assign(model.layers.size(), 0.0);
}

void Player::cut(std::uint32_t layer) {
  first_piece_.push_back(static_cast<std::uint32_t>(pieces_.size()));
  const ModelLayer& from = model_.layers[layer];
  if (schemes_[layer] == Scheme::kSfb) {
    POSEIDON_CHECK(from.sfb_applies, "only fully connected layers have factors");
    pieces_.push_back({.layer = layer, .bytes = from.factor_bytes, .factors = true, .skew_s = 0.0});
    missing_pieces_[layer] = 1;
    return;
  }
  const double count = std::max(1.0, std::ceil(from.bytes / model_.stripe_bytes));
  const double chunks = std::max(1.0, std::ceil(from.bytes / model_.chunk_bytes));
  const double fullest = std::ceil(chunks / model_.servers) / chunks;
  const double skew_s =
      std::max(0.0, fullest - model_.largest_share) * from.bytes * model_.hot_s_per_byte;
  for (double i = 0; i < count; ++i) {
    pieces_.push_back(
        {.layer = layer, .bytes = from.bytes / count, .factors = false, .skew_s = skew_s});
  }
  missing_pieces_[layer] = static_cast<std::uint32_t>(count);
}

// ---- the way of a piece: release (up) -> enter -> carried -> [sum -> the same down] -> landed
// ----

double Player::link_s_per_byte(std::size_t link, std::uint32_t key) const {
  const LinkLoad& load = model_.links[link];
  if (pieces_[key / 2].factors) return load.factor_s_per_byte;
  return key % 2 == 1 ? load.push_s_per_byte : load.pull_s_per_byte;
}

void Player::release(std::uint32_t key) {
  double behind_s = 0.0;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (link_s_per_byte(i, key) > 0.0) {
      behind_s = std::max(behind_s, std::min(model_.in_flight_s, links_[i].work_left_s(now_)));
    }
  }
  if (behind_s > 0.0) {
    delays_.emplace(now_ + behind_s, key + first_entry());
  } else {
    enter(key);
  }
}

void Player::enter(std::uint32_t key) {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const double s_per_byte = link_s_per_byte(i, key);
    if (s_per_byte <= 0.0) continue;
    links_[i].add(key, pieces_[key / 2].bytes * s_per_byte, now_);
    ++links_left_[key];
  }
  if (links_left_[key] == 0) carried(key);
}

void Player::carried(std::uint32_t key) {
  after_delay(key, model_.latency_s + pieces_[key / 2].skew_s);
}

void Player::after_delay(std::uint32_t key, double delay_s) {
  delays_.emplace(now_ + delay_s, key);
}

void Player::arrived(std::uint32_t key) {
  const Piece& piece = pieces_[key / 2];
  if (piece.factors) {
    rebuilds_.push_back(piece.layer);
  } else if (key % 2 == 1) {
    sums_->add(key - 1, piece.bytes * model_.sum_s_per_byte, now_);
  } else {
    landed(piece.layer);
  }
}

// ---- the device ----

void Player::run(Kernel kernel, std::uint32_t layer, double seconds) {
  kernel_ = kernel;
  kernel_layer_ = layer;
  kernel_end_ = now_ + seconds;
}

void Player::start_kernel() {
  if (!rebuilds_.empty()) {
    run(Kernel::kRebuild, rebuilds_.front(), model_.layers[rebuilds_.front()].rebuild_s);
    rebuilds_.pop_front();
  } else if (backward_left_ > 0) {
    const std::uint32_t layer = --backward_left_;
    const ModelLayer& costs = model_.layers[layer];
    run(Kernel::kBackward, layer,
        schemes_[layer] == Scheme::kSfb ? costs.sfb_backward_s : costs.backward_s);
  } else if (next_forward_ < model_.layers.size() && missing_pieces_[next_forward_] == 0) {
    const std::uint32_t layer = next_forward_++;
    run(Kernel::kForward, layer, model_.layers[layer].forward_s);
  } else {
    return;
  }
  if (backward_left_ == 0 && now_ > idle_since_) {
    // Idle until now, waiting for this layer or for the one whose forward it waits for.
    const std::uint32_t waited = kernel_ == Kernel::kForward ? kernel_layer_ : next_forward_;
    if (waited < prediction_.stall_s.size()) prediction_.stall_s[waited] += now_ - idle_since_;
  }
}

void Player::kernel_done() {
  const Kernel kernel = std::exchange(kernel_, Kernel::kNone);
  kernel_end_ = kNever;
  idle_since_ = now_;
  if (kernel == Kernel::kRebuild) landed(kernel_layer_);
  if (kernel != Kernel::kBackward) return;
  backward_end_s_[kernel_layer_] = now_;
  for (std::uint32_t i = first_piece_[kernel_layer_]; i < first_piece_[kernel_layer_ + 1]; ++i) {
    release(2 * i + 1);
  }
}

IterationPrediction Player::play() {
  for (const ModelLayer& layer : model_.layers) {
    prediction_.compute_s += layer.forward_s + layer.backward_s;
  }
  while (true) {
    if (kernel_ == Kernel::kNone) start_kernel();
    if (kernel_ == Kernel::kNone && next_forward_ == model_.layers.size()) break;
    // The next thing that happens; what ends at the same time is taken in this order, but what
    // enters a link does so after what was in front of it.
    double next = delays_.empty() ? kNever : delays_.top().first;
    const bool enters = !delays_.empty() && delays_.top().second >= first_entry();
    PriorityServer* server = nullptr;
    for (PriorityServer& link : links_) {
      const double end = link.next_end();
      if (end < next || (enters && server == nullptr && end <= next)) next = end, server = &link;
    }
    if (sums_->next_end() < next) next = sums_->next_end(), server = &*sums_;
    POSEIDON_CHECK(next < kNever || kernel_end_ < kNever, "every layer arrives");
    if (kernel_end_ < next) {
      now_ = kernel_end_;
      kernel_done();
    } else if (server == nullptr) {
      now_ = next;
      const std::uint32_t key = delays_.top().second;
      delays_.pop();
      if (key >= first_entry()) {
        enter(key - first_entry());
      } else {
        arrived(key);
      }
    } else {
      now_ = next;
      const std::uint32_t key = server->finish(now_);
      if (server == &*sums_) {
        release(key);
      } else if (--links_left_[key] == 0) {
        carried(key);
      }
    }
  }
  prediction_.iteration_s = now_;
  return std::move(prediction_);
}

}  // namespace

IterationModel make_iteration_model(std::vector<ModelLayer> layers, const LinkModel& cluster,
                                    const std::vector<double>& shares, std::int64_t chunk_bytes,
                                    std::int64_t window_bytes) {
  IterationModel model;
  double total_bytes = 0.0;
  for (const ModelLayer& layer : layers) total_bytes += layer.bytes;
  model.layers = std::move(layers);
  model.links = link_loads(cluster, shares);
  // Processes of one machine wake each other in microseconds.
  model.latency_s = model.links.empty() ? 0.0 : cluster.latency_s;
  model.largest_share = *std::max_element(shares.begin(), shares.end());
  // A relay sums all of the parameters, of its group.
  const double of_server = model.largest_share * static_cast<double>(cluster.contributors);
  const double of_relay =
      cluster.largest_group > 1 ? static_cast<double>(cluster.largest_group) : 0.0;
  model.sum_s_per_byte = std::max(of_server, of_relay) / cluster.server_sum_bytes_per_s;
  double slowest = std::numeric_limits<double>::infinity();
  for (const Machine& machine : cluster.machines) {
    const double rate = std::min(machine.nic.send_bytes_per_s, machine.nic.receive_bytes_per_s);
    slowest = std::min(slowest, rate);
    if (machine.servers.empty()) continue;
    model.hot_s_per_byte =
        std::max(model.hot_s_per_byte,
                 static_cast<double>(cluster.contributors - machine.contributors) / rate);
  }
  model.chunk_bytes = static_cast<double>(chunk_bytes);
  // To and from every other machine: two chunks keep a stream busy, and more goes up to the window.
  const auto streams = static_cast<double>(cluster.machines.size() - 1);
  const double window =
      std::min(streams * static_cast<double>(kWindowBytes), static_cast<double>(window_bytes));
  model.in_flight_s = std::max(window, 2.0 * streams * model.chunk_bytes) / slowest;
  model.servers = static_cast<std::uint32_t>(cluster.servers);
  model.stripe_bytes =
      std::max(model.chunk_bytes * static_cast<double>(cluster.servers), total_bytes / kMaxStripes);
  return model;
}

IterationPrediction play_iteration(const IterationModel& model, absl::Span<const Scheme> schemes) {
  return Player(model, schemes).play();
}

double link_busy_s(const IterationModel& model, const ModelLayer& layer, Scheme scheme) {
  double busy_s = 0.0;
  for (const LinkLoad& link : model.links) {
    busy_s = std::max(busy_s, scheme == Scheme::kSfb
                                  ? link.factor_s_per_byte * layer.factor_bytes
                                  : (link.push_s_per_byte + link.pull_s_per_byte) * layer.bytes);
  }
  return busy_s;
}

}  // namespace poseidon
