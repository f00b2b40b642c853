#pragma once

// The parts of an iteration that are measured, under one name each: the `stage` label of
// poseidon_stage_seconds, and of trace events. Traces carry the stages' numbers between nodes:
// append new ones at the end. A node drops events of stages that it does not know.
//
// Called by: the data path, which measures a stage; common/probes/node_probe.h, which counts its
// time and records the event during a trace. Calls: nothing.

#include <cstdint>

namespace poseidon {

enum class Stage : std::uint8_t {
  kInput,     ///< worker, once per iteration: waiting for the batch
  kForward,   ///< worker, once per iteration: all layers, without their waits
  kBackward,  ///< worker, likewise
  kStall,     ///< worker, each wait of the engine for a layer's parameters
  kRebuild,   ///< worker, each layer that goes by SFB: the stacked product and the step
  kTest,      ///< worker: its share of one test
  kCopy,  ///< worker: copies own factors to the stack, and received parameters and factors to their
          ///< place
  kQueue,  ///< both, each message with a chunk or factor: from ready until it is its turn to be
           ///< sent
  kSend,   ///< both, likewise: until the stream takes the next one
           ///< (common/transport/paced_transport.h)
  kSum,   ///< server, each chunk of a gradient that is not a step's last: checked and added; worker
          ///< that leads a group: each chunk of the group's
  kStep,  ///< server, a step's last chunk: sum, optimizer, new version
  kCheckpoint,  ///< server: one snapshot, from its first piece until it is sealed
  kWrite,       ///< server, each piece of a snapshot, and the sealing: until the store has it
  // Worker with a GPU, each copy between its memory and the host's in a training pass:
  kUpload,         ///< a layer's parameters, or a piece of a batch
  kDownload,       ///< a layer's gradient, or one of its own factors
  kUploadFactors,  ///< a layer's stacked factors, to be stepped with
  kCount           ///< number of stages, not one itself
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
    case Stage::kCopy:
      return "copy";
    case Stage::kQueue:
      return "queue";
    case Stage::kSend:
      return "send";
    case Stage::kSum:
      return "sum";
    case Stage::kStep:
      return "step";
    case Stage::kCheckpoint:
      return "checkpoint";
    case Stage::kWrite:
      return "write";
    case Stage::kUpload:
      return "upload";
    case Stage::kDownload:
      return "download";
    case Stage::kUploadFactors:
      return "upload_factors";
    case Stage::kCount:
      break;
  }
  return "";
}

/// For a chunk between a worker and the relay of its group (sync/relay/relay.h): the end at which
/// the event is. The peer is a worker at both ends.
enum class RelayEnd : std::uint8_t { kNone = 0, kWorker = 1, kRelay = 2 };

/// Copies to and from a device with memory of its own. They are measured during traces only, so
/// poseidon_stage_seconds does not include them.
constexpr bool is_device_copy(Stage stage) {
  return stage >= Stage::kUpload && stage <= Stage::kUploadFactors;
}
/// Whether the stage belongs to servers.
constexpr bool is_server_stage(Stage stage) {
  return stage == Stage::kQueue || stage == Stage::kSend ||
         (stage >= Stage::kSum && stage <= Stage::kWrite);
}
constexpr bool is_worker_stage(Stage stage) {
  return stage <= Stage::kSum || is_device_copy(stage);
}
/// Checkpoints are written while later iterations train.
constexpr bool is_of_iteration(Stage stage) {
  return stage != Stage::kCheckpoint && stage != Stage::kWrite;
}

}  // namespace poseidon
