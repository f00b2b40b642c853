#pragma once

// How long each parameter layer computes in an iteration's training passes. Layers without
// parameters count with the parameter layer before them, those before the first one with the first.
// One thread.
//
// Two sources: the moments at which the executor calls its hooks, and, where an asynchronous device
// is ahead of or behind its hooks, what the device says of the pass itself
// (Executor::device_times).
//
// The same clock measures before a job (measure_compute.h) and during it (trainer.h): what a plan
// assumes and what is measured later mean the same.

#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "worker/engine/executor.h"

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

  void begin_forward() { begin_pass(); }
  /// The hook before a layer's forward: computing stands still from here to run_forward.
  void stop_forward() { stop(at_); }
  void run_forward(LayerIndex layer) {
    at_ = layer;
    last_ = clock_->now();
  }
  /// The pass has returned. Counts it by `device` (of the executor), or by the hooks where that is
  /// empty, and returns what was counted, on this clock, in order; until the next pass begins.
  std::span<const LayerInterval> end_forward(std::span<const LayerInterval> device) {
    if (device.empty()) stop_forward();
    return count(device, &Times::forward);
  }

  void begin_backward() { begin_pass(); }
  /// The hook after a layer's backward: likewise until run_backward.
  void stop_backward(LayerIndex layer) { stop(layer); }
  void run_backward() { last_ = clock_->now(); }
  std::span<const LayerInterval> end_backward(std::span<const LayerInterval> device) {
    return count(device, &Times::backward);
  }

  /// By LayerIndex; of the iteration so far.
  const std::vector<Times>& times() const { return times_; }

 private:
  void begin_pass() {
    pass_.clear();
    at_ = LayerIndex(0);
    last_ = clock_->now();
  }
  void stop(LayerIndex layer) { pass_.push_back({layer, last_, clock_->now()}); }

  std::span<const LayerInterval> count(std::span<const LayerInterval> device,
                                       Nanoseconds Times::*direction) {
    if (!device.empty()) {
      // The pass returned when the device had nothing left to do.
      const Nanoseconds begin = clock_->now() - device.back().end;
      pass_.assign(device.begin(), device.end());
      for (LayerInterval& ran : pass_) {
        ran.begin += begin;
        ran.end += begin;
      }
    }
    for (const LayerInterval& ran : pass_) {
      times_[ran.layer.value()].*direction += ran.end - ran.begin;
    }
    return pass_;
  }

  const Clock* const clock_;
  std::vector<Times> times_;
  std::vector<LayerInterval> pass_;
  LayerIndex at_{0};
  Nanoseconds last_{0};
};

}  // namespace poseidon
