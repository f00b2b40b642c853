#include "common/node/job_reports.h"

#include "common/base/text.h"
#include "common/base/unreachable.h"

namespace poseidon {

v1::Failure failure_of(const absl::Status& status, bool restoring) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return v1::FAILURE_PEER;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kNotFound:
      return restoring ? v1::FAILURE_CHECKPOINT : v1::FAILURE_JOB;
    default:
      return v1::FAILURE_JOB;
  }
}

v1::NodeMessage ready_message(Epoch epoch, const std::optional<DataIdentity>& data) {
  v1::NodeMessage message;
  message.mutable_ready()->set_epoch(epoch.value());
  if (data) put_data_identity(*data, *message.mutable_ready());
  return message;
}

v1::NodeMessage iteration_message(Epoch epoch, Iteration iteration, double loss) {
  v1::NodeMessage message;
  v1::IterationReport& report = *message.mutable_iteration();
  report.set_epoch(epoch.value());
  report.set_iteration(static_cast<std::uint64_t>(iteration));
  report.set_loss(loss);
  return message;
}

v1::NodeMessage test_message(Epoch epoch, Iteration steps, double loss_sum, std::int64_t correct,
                             std::int64_t samples) {
  v1::NodeMessage message;
  v1::TestReport& report = *message.mutable_test();
  report.set_epoch(epoch.value());
  report.set_iteration(static_cast<std::uint64_t>(steps));
  report.set_loss_sum(loss_sum);
  report.set_correct(static_cast<std::uint64_t>(correct));
  report.set_samples(static_cast<std::uint64_t>(samples));
  return message;
}

v1::NodeMessage finished_message(Epoch epoch) {
  v1::NodeMessage message;
  message.mutable_finished()->set_epoch(epoch.value());
  return message;
}

v1::NodeMessage failed_message(Epoch epoch, const absl::Status& status, bool restoring) {
  v1::NodeMessage message;
  v1::Failed& failed = *message.mutable_failed();
  failed.set_epoch(epoch.value());
  failed.set_reason(to_utf8(from_absl(status.message())));
  failed.set_failure(failure_of(status, restoring));
  failed.set_unreachable(to_utf8(unreachable_address(status)));
  return message;
}

v1::NodeMessage halted_message(Epoch epoch, Iteration oldest, Iteration newest) {
  v1::NodeMessage message;
  v1::Halted& halted = *message.mutable_halted();
  halted.set_epoch(epoch.value());
  halted.set_oldest(static_cast<std::uint64_t>(oldest));
  halted.set_newest(static_cast<std::uint64_t>(newest));
  return message;
}

v1::NodeMessage checkpoint_missing_message(Epoch epoch, Iteration version,
                                           const std::string& reason, MissingPart why) {
  v1::NodeMessage message;
  v1::CheckpointReport& report = *message.mutable_checkpoint();
  report.set_epoch(epoch.value());
  report.set_iteration(static_cast<std::uint64_t>(version));
  report.set_reason(to_utf8(reason));
  report.set_too_late(why == MissingPart::kTooLate);
  report.set_busy(why == MissingPart::kBusy);
  return message;
}

}  // namespace poseidon
