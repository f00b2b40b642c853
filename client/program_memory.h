#pragma once

// The memory that a program and all epochs of its job share: parameters and gradients of each
// declared layer, and the declared state.
//
// Called by: client/client.cc, which gives the program its addresses; client/program_framework.h,
// which gives them to synchronisation. Calls: models/net/model_layout.h, common/memory.
//
// Layers: which thread may write when is what client/program_progress.h decides. The program's
// state memory is the program's thread's alone; the job's copies of state belong to the job's
// thread (client/program_framework.h) and to client/program_link.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "models/net/model_layout.h"
#include "sync/routes/layer_memory.h"

namespace poseidon {

class ProgramMemory {
 public:
  /// All zero. From the shared arena where the process has one.
  explicit ProgramMemory(ModelLayout layout);

  const ModelLayout& layout() const { return layout_; }
  std::size_t layers() const { return layers_.size(); }
  std::vector<std::string> layer_names() const;

  std::span<float> parameters(std::size_t layer) { return layers_[layer].parameters.floats(); }
  std::span<float> gradients(std::size_t layer) { return layers_[layer].gradients.floats(); }
  LayerMemory layer_memory(std::size_t layer);
  /// The program's.
  std::span<float> state() { return state_.floats(); }

  /// Keeps a copy of all parameters, with which a job begins again from its first iteration.
  void remember_initial();
  void restore_initial();

 private:
  struct Layer {
    FloatBuffer parameters, gradients;
    std::vector<float> initial;
  };
  const ModelLayout layout_;
  std::vector<Layer> layers_;
  FloatBuffer state_;
};

}  // namespace poseidon
