#include "coordinator/job/reports/training_data.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace poseidon {

void TrainingData::set_checkpoint(DataIdentity data, std::string whose) {
  known_ = {.data = data, .whose = std::move(whose), .may_change = true};
}

void TrainingData::set_trained(DataIdentity data) {
  known_ = {.data = data, .whose = "the workers until now"};
}

std::optional<DataIdentity> TrainingData::identity() const {
  return known_ ? std::optional(known_->data) : std::nullopt;
}

TrainingData::Answer TrainingData::on_found(const Worker& worker, const DataIdentity& found) {
  // An earlier version did not write down what the run trains on: that is for its own to say.
  if (!known_ && worker.run_started && worker.is_new) return {};
  const std::string difference = known_ ? data_difference(found, known_->data) : "";
  if (known_ && difference.empty() && !known_->may_change) {
    known_->data = joined(known_->data, found);
    return {};
  }
  if (known_ && !known_->may_change) {
    if (worker.run_started && !worker.is_new) {
      return {.refusal =
                  absl::StrCat("its data have changed since the run began: ", difference,
                               "; put those back, or go on with others by `poseidon checkpoint "
                               "restore`")};
    }
    return {.refusal = absl::StrCat("its data are not those of ", known_->whose, ": ", difference,
                                    "; give all workers the same files at the same path")};
  }
  Answer answer;
  if (!difference.empty()) {
    answer.remark = absl::StrCat("the data of ", worker.name, " are not those that ", known_->whose,
                                 " was trained on: ", difference,
                                 "; training goes on with what there is, but not as it would have");
  }
  known_ = {.data = known_ && difference.empty() ? joined(known_->data, found) : found,
            .whose = worker.name};
  return answer;
}

}  // namespace poseidon
