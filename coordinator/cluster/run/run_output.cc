#include "coordinator/cluster/run/run_output.h"

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"

namespace poseidon {

std::shared_ptr<RunFiles> RunOutput::begin(std::shared_ptr<RunFiles> directory) {
  closing_ = false;
  is_closed_ = false;
  lines_refused_.clear();
  record_refused_.clear();
  lines_lost_.clear();
  model_ = Model::kNone;
  model_missing_.clear();
  return std::exchange(directory_, std::move(directory));
}

std::string RunOutput::on_lines_refused(const absl::Status& status) {
  lines_refused_ = absl::StrCat(
      status.message(), "; the lines are kept and the write is tried again: free some space");
  return lines_refused_;
}

std::string RunOutput::on_record_refused(const absl::Status& status) {
  record_refused_ =
      absl::StrCat(status.message(),
                   "; the job continues and the write is tried again, but a coordinator that is "
                   "started now would continue from an older record: free some space");
  return record_refused_;
}

void RunOutput::close_when_over() {
  if (model_ == Model::kAwaited || std::exchange(closing_, true)) return;
  directory_->close(RunEnd::kOver);
}

void RunOutput::on_model_left(const absl::Status& status) {
  model_ = Model::kLeft;
  model_missing_ = std::string(status.message());
}

void RunOutput::set_closed() {
  is_closed_ = true;
  closed_changed_.notify_all();
}

void RunOutput::wait_until_closed(Mutex& mutex, Nanoseconds timeout) {
  closed_changed_.wait_for(mutex, timeout, [this] { return is_closed_; });
}

}  // namespace poseidon
