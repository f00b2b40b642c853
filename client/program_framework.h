#pragma once

// A program as a worker's framework: it computes on its own thread, and a job's thread does here
// with the synchronisation client what the program's calls ask for.
//
// Called by: sync/node/worker_node.h, through sync/node/framework.h; client/program_node.h makes
// it. Calls: client/program_link.h, sync/client/sync_client.h.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/program_link.h"
#include "client/program_memory.h"
#include "sync/node/framework.h"

namespace poseidon {

/// What outlives the epochs of one program. Of one job's thread at a time.
struct ProgramParts {
  ProgramMemory* memory = nullptr;
  ProgramLink* link = nullptr;
  bool sums = false;  ///< the program steps: its final parameters are in the gradients' memory
  /// With which a job begins again from its first iteration; parameters have theirs in `memory`.
  std::vector<float> initial_state;
};

class ProgramFramework final : public Framework {
 public:
  /// `parts` outlives the framework. `ended` is called after the job's end.
  ProgramFramework(ProgramParts* parts, std::function<void()> ended)
      : parts_(parts), ended_(std::move(ended)) {}

  std::unique_ptr<FrameworkJob> begin_job() override;
  /// UNIMPLEMENTED: a program computes when it does.
  absl::Status measure(const v1::CalibrateCompute& task, const std::atomic<bool>& cancelled,
                       v1::CalibrationReport& report) override;
  absl::Status broken_by(const absl::Status& /*failure*/) override { return absl::OkStatus(); }
  void job_ended(bool succeeded, const std::string& reason) override;

 private:
  ProgramParts* const parts_;
  const std::function<void()> ended_;
};

}  // namespace poseidon
