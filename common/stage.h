#pragma once

// The parts of an iteration that are measured, under one name each: the `stage` label of
// poseidon_stage_seconds, and of trace events.

#include <cstdint>

namespace poseidon {

enum class Stage : std::uint8_t {
  kInput,       ///< worker, once per iteration: until the batch is there
  kForward,     ///< worker, once per iteration: all layers, without what they wait for
  kBackward,    ///< worker, likewise
  kStall,       ///< worker, each wait: the engine stands still until a layer's parameters are there
  kRebuild,     ///< worker, each layer that goes by SFB: the stacked product and the step
  kTest,        ///< worker: its share of one test
  kSum,         ///< server, each chunk of a gradient that is not a step's last: checked and added
  kStep,        ///< server, a step's last one: sum, optimizer, new version
  kCheckpoint,  ///< server: one snapshot, from its first piece until it is sealed
  kCount        ///< number of stages, not one itself
};

constexpr const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kInput:
      return "input";
    case Stage::kForward:
      return "forward";
    case Stage::kBackward:
      return "backward";
    case Stage::kStall:
      return "stall";
    case Stage::kRebuild:
      return "rebuild";
    case Stage::kTest:
      return "test";
    case Stage::kSum:
      return "sum";
    case Stage::kStep:
      return "step";
    case Stage::kCheckpoint:
      return "checkpoint";
    case Stage::kCount:
      break;
  }
  return "";
}

/// Whose stage it is.
constexpr bool is_server_stage(Stage stage) {
  return stage == Stage::kSum || stage == Stage::kStep || stage == Stage::kCheckpoint;
}

}  // namespace poseidon
