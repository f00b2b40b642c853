#pragma once

// Measures how long each parameter layer computes in an iteration's training passes. Layers without
// parameters count with the parameter layer before them, those before the first one with the first.
// One thread.
//
// Two sources: the times at which the executor calls its hooks and, on asynchronous devices, which
// run ahead of or behind the hooks, the device's own times (Executor::device_times).
//
// The same clock measures before a job (measure_compute.h) and during it (trainer.h), so planned
// and measured times are comparable. Device times cost a thousand driver calls per iteration of a
// deep network, so training requests them only now and then (asks_the_device).
//
// Called by: measure_compute.h and trainer.h. Calls: worker/engine/executor.h.

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/engine/executor.h"

namespace poseidon {

/// Whether a device measures its own times in the n-th iteration since the start (from 0): in the
/// first few (the very first is atypical), then in one of eight.
inline bool asks_the_device(std::int64_t n) {
  constexpr std::int64_t kAtFirst = 4, kEvery = 8;
  return n < kAtFirst || n % kEvery == 0;
}

class LayerClock {
 public:
  struct Times {
    Nanoseconds forward{0}, backward{0};
  };

  /// `clock` outlives it.
  LayerClock(const Clock* clock, std::size_t layers) : clock_(clock), times_(layers) {}

  /// Resets the counts. An iteration has one pass per part of its batch. When `is_measured` is
  /// false its passes have no times, and it counts like the last measured one.
  void begin_iteration(bool is_measured = true) {
    is_measured_ = is_measured;
    if (is_measured) times_.assign(times_.size(), Times{});
  }

  void begin_forward() { begin_pass(); }
  /// The hook before a layer's forward: the time from here to run_forward is no computing.
  void stop_forward() { stop(at_); }
  void run_forward(LayerIndex layer) {
    at_ = layer;
    last_ = clock_->now();
  }
  /// The pass has returned. Counts it by `device` (of the executor), or by the hooks where that is
  /// empty. Returns the counted times and the device's copies, on this clock; valid until the next
  /// pass begins.
  DeviceTimes end_forward(const DeviceTimes& device) {
    if (device.layers.empty()) stop_forward();
    return count(device, &Times::forward);
  }

  void begin_backward() { begin_pass(); }
  /// The hook after a layer's backward: likewise until run_backward.
  void stop_backward(LayerIndex layer) { stop(layer); }
  void run_backward() { last_ = clock_->now(); }
  DeviceTimes end_backward(const DeviceTimes& device) { return count(device, &Times::backward); }

  /// By LayerIndex; of the iteration so far, or of the last that was measured.
  const std::vector<Times>& times() const { return times_; }

 private:
  void begin_pass() {
    pass_.clear();
    copies_.clear();
    at_ = LayerIndex(0);
    began_ = last_ = clock_->now();
  }
  void stop(LayerIndex layer) { pass_.push_back({layer, last_, clock_->now()}); }

  DeviceTimes count(const DeviceTimes& device, Nanoseconds Times::*direction) {
    if (!is_measured_) {
      pass_.clear();
      return {};
    }
    // The device is idle when a pass begins. (Also when it ends, but hooks may have run by then.)
    if (!device.layers.empty()) move(device.layers, pass_);
    move(device.copies, copies_);
    for (const LayerInterval& ran : pass_) {
      times_[ran.layer.value()].*direction += ran.end - ran.begin;
    }
    return {.layers = pass_, .copies = copies_};
  }
  /// From the device's time to this clock's.
  template <typename Interval>
  void move(std::span<const Interval> from, std::vector<Interval>& to) const {
    to.assign(from.begin(), from.end());
    for (Interval& interval : to) {
      interval.begin += began_;
      interval.end += began_;
    }
  }

  const Clock* const clock_;
  std::vector<Times> times_;
  std::vector<LayerInterval> pass_;
  std::vector<CopyInterval> copies_;
  bool is_measured_ = true;
  LayerIndex at_{0};
  Nanoseconds began_{0}, last_{0};
};

}  // namespace poseidon
