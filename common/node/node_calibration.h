#pragma once

// A node's side of the measurement before a job: runs the coordinator's Calibrate tasks, one at a
// time, and reports each. The network is measured here; workers and servers pass in the function
// that measures the rest.
//
// Called by: the node, when the control client delivers a Calibrate. Calls:
// common/node/link_probe.h; the reports go to coordinator/job/reports/calibration_run.h.

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "common/node/control_client.h"
#include "common/node/link_probe.h"
#include "common/threads/mutex.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// All methods but the constructor's on the control client's thread.
class NodeCalibration {
 public:
  /// Measures what `task` asks for (no link) and fills in the report. Runs on a thread of its own;
  /// `cancelled` asks it to return soon.
  using Work =
      std::function<absl::Status(const v1::Calibrate& task, const std::atomic<bool>& cancelled,
                                 v1::CalibrationReport& report)>;

  /// `probe` outlives it; null: this node does not measure the network and reports that.
  NodeCalibration(LinkProbe* probe, Work work);
  ~NodeCalibration();  ///< ends
  NodeCalibration(const NodeCalibration&) = delete;
  NodeCalibration& operator=(const NodeCalibration&) = delete;

  /// Before the first begin; outlives it.
  void set_client(ReportSink* client);
  /// Ends the previous task, if it still runs, and begins this one.
  void begin(const v1::Calibrate& task);
  /// No report comes after it. Idempotent.
  void end();

 private:
  /// Reports of a task; outlives us in the loop's callbacks.
  struct Answers {
    Mutex mutex;
    ReportSink* client ABSL_GUARDED_BY(mutex) = nullptr;  ///< null: answers are no longer wanted
    std::uint64_t task ABSL_GUARDED_BY(mutex) = 0;        ///< the one that may answer
    void send(std::uint64_t from, v1::CalibrationReport report, const absl::Status& status);
  };

  void measure_link(const v1::Calibrate& task, std::uint64_t number);

  LinkProbe* const probe_;
  const Work work_;
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  std::thread thread_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace poseidon
