#pragma once

// How long each parameter layer computes in an iteration's training passes, from the moments at
// which the executor calls its hooks. Layers without parameters count with the parameter layer
// before them, those before the first one with the first. One thread.
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

  /// `clock` outlives it.
  LayerClock(const Clock* clock, std::size_t layers) : clock_(clock), times_(layers) {}

  /// What was counted is forgotten. An iteration has one pass per part of its batch.
  void begin_iteration() { times_.assign(times_.size(), Times{}); }
  void begin_forward() {
    at_ = 0;
    last_ = clock_->now();
  }
  /// The hook before a layer's forward: computing stands still from here to run_forward.
  void stop_forward() { times_[at_].forward += elapsed(); }
  void run_forward(LayerIndex layer) {
    at_ = layer.value();
    last_ = clock_->now();
  }
  void begin_backward() { last_ = clock_->now(); }
  /// The hook after a layer's backward: likewise until run_backward.
  void stop_backward(LayerIndex layer) { times_[layer.value()].backward += elapsed(); }
  void run_backward() { last_ = clock_->now(); }

  /// By LayerIndex; of the iteration so far.
  const std::vector<Times>& times() const { return times_; }

 private:
  Nanoseconds elapsed() const { return clock_->now() - last_; }

  const Clock* const clock_;
  std::vector<Times> times_;
  std::size_t at_ = 0;
  Nanoseconds last_{0};
};

}  // namespace poseidon
