#include "coordinator/cluster/run/uploads.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

/// Room in the model's size for the file's header and for tensors that are not parameters.
constexpr std::uint64_t kModelSlackBytes = 64 << 20;

std::uint64_t most_model_bytes(const Plan& plan) {
  std::uint64_t parameters = 0;
  for (const PlanLayer& layer : plan.layers) {
    parameters += static_cast<std::uint64_t>(layer.parameters);
  }
  // Twice: layers may carry statistics beside their parameters.
  return 2 * 4 * parameters + kModelSlackBytes;
}

}  // namespace

absl::Status worth_another_try(const absl::Status& status) {
  // A part that does not fit is not an error of the disk.
  if (status.ok() || absl::IsInvalidArgument(status)) return status;
  return absl::UnavailableError(absl::StrCat("the model cannot be stored: ", status.message()));
}

absl::Status Uploads::begin(std::uint64_t epoch, std::uint64_t total_bytes, const Plan& plan) {
  if (epoch_ && *epoch_ >= epoch) {
    return absl::UnavailableError("another upload of the model is under way");
  }
  if (const std::uint64_t limit = most_model_bytes(plan); total_bytes > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model of ", total_bytes, " bytes; this network's has at most ", limit));
  }
  epoch_ = epoch;
  return absl::OkStatus();
}

std::optional<std::string> Uploads::end(std::uint64_t epoch, const absl::Status& status) {
  if (epoch_ == epoch) epoch_.reset();
  const std::string why = absl::IsUnavailable(status) ? std::string(status.message()) : "";
  if (std::exchange(refused_, why) == why || why.empty()) return std::nullopt;
  return retry_text();
}

std::string Uploads::retry_text() const {
  return refused_.empty() ? "" : absl::StrCat(refused_, "; worker 0 keeps it and tries again");
}

}  // namespace poseidon
