#pragma once

// How long each parameter layer computes in an iteration's training passes, from the moments at
// which the executor calls its hooks. Layers without parameters count with the parameter layer
// before them, those before the first one with the first. One thread.
//
// These are the host's times. An asynchronous device (worker/engine/device.h) is ahead of or behind
// its hooks: there a pass as a whole is right, a layer's share of it is not.
//
// The same clock measures before a job (measure_compute.h) and during it (trainer.h): what a plan
// assumes and what is measured later mean the same.

#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"

namespace poseidon {

class LayerClock {
 public:
  struct Times {
    Nanoseconds forward{0}, backward{0};
  };

  /// What was just counted.
  struct Interval {
    LayerIndex layer;
    Nanoseconds begin{0}, end{0};
  };

  /// `clock` outlives it.
  LayerClock(const Clock* clock, std::size_t layers) : clock_(clock), times_(layers) {}

  /// What was counted is forgotten. An iteration has one pass per part of its batch.
  void begin_iteration() { times_.assign(times_.size(), Times{}); }
  void begin_forward() {
    at_ = 0;
    last_ = clock_->now();
  }
  /// The hook before a layer's forward: computing stands still from here to run_forward.
  Interval stop_forward() {
    const Interval ran = interval(at_);
    times_[at_].forward += ran.end - ran.begin;
    return ran;
  }
  void run_forward(LayerIndex layer) {
    at_ = layer.value();
    last_ = clock_->now();
  }
  void begin_backward() { last_ = clock_->now(); }
  /// The hook after a layer's backward: likewise until run_backward.
  Interval stop_backward(LayerIndex layer) {
    const Interval ran = interval(layer.value());
    times_[layer.value()].backward += ran.end - ran.begin;
    return ran;
  }
  void run_backward() { last_ = clock_->now(); }

  /// By LayerIndex; of the iteration so far.
  const std::vector<Times>& times() const { return times_; }

 private:
  Interval interval(std::size_t layer) const {
    return {LayerIndex(static_cast<std::uint32_t>(layer)), last_, clock_->now()};
  }

  const Clock* const clock_;
  std::vector<Times> times_;
  std::size_t at_ = 0;
  Nanoseconds last_{0};
};

}  // namespace poseidon
