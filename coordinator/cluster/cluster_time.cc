// Cluster's part about time: who has been silent for how long, what is due, and the end of the
// process (cluster.cc has the rest).

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cluster/cluster.h"

namespace poseidon {
namespace {

/// How often the times of the layers are held against the plan's: once per window of them.
constexpr Nanoseconds kDriftInterval = TrafficMonitor::kWindow;
/// How long shutdown waits for the last files.
constexpr std::chrono::seconds kFilesTimeout{10};
constexpr std::chrono::seconds kSettleTimeout{2};  ///< of manifests that are being written, or go

}  // namespace

void Cluster::tick() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Nanoseconds now = clock_->now();
  forgive_job(now);  // before anything is judged by how long it took
  membership_.set_job(nodes_of_job());
  const std::vector<NodeId> silent = membership_.vouched_for(options_.membership.lease, now);
  if (!silent.empty() && job_ && job_->others_have_finished(silent)) membership_.await(silent);
  const bool was_cut_off = membership_.isolated_since().has_value();
  for (const Departure& departure : membership_.expire(now)) {
    depart(departure, absl::AbortedError(absl::StrCat("this node ", departure.reason)));
  }
  if (!was_cut_off && membership_.isolated_since()) {
    note(EventKind::kAlarm,
         "no node is heard: is this coordinator cut off? Nobody is given up meanwhile");
  }
  if (!membership_.isolated_since()) tell_who_is_vouched_for(now);
  for (auto it = attached_.begin(); it != attached_.end();) {
    if (!it->second.node && now - it->second.opened > options_.membership.lease) {
      refuse(Refusal::kNotJoined, absl::StrCat("no Join from ", it->first->peer_host()));
      it->first->close(absl::DeadlineExceededError("no Join within the lease"));
      it = attached_.erase(it);
    } else {
      ++it;
    }
  }
  remove_due_checkpoints();
  write_targets_again();
  tick_trace();
  const bool is_heard = forgive_job(now);
  if (!is_heard || !job_ || job_->ended()) return;
  apply(job_->tick(now));
  if (traffic_ && now - drift_looked_ >= kDriftInterval) {
    drift_looked_ = now;
    watch_drift(now);
  }
}

/// Cut off from us alone. Not after a lease already: who dies while the job trains is vouched for
/// by the iteration in flight, and gone a moment later.
void Cluster::tell_who_is_vouched_for(Nanoseconds now) {
  const std::vector<NodeId> nodes = membership_.vouched_for(2 * options_.membership.lease, now);
  const std::set<NodeId> before = std::exchange(vouched_for_, {nodes.begin(), nodes.end()});
  for (const NodeId id : before) {  // its stream ended, and that is all that was heard
    if (membership_.find(id) != nullptr && link_of(id) == nullptr) vouched_for_.insert(id);
  }
  for (const NodeId id : nodes) {
    if (before.contains(id)) continue;
    note(
        EventKind::kAlarm,
        absl::StrFormat("%s (node %d) is not heard, but the job trains with it: it is cut off from "
                        "the coordinator alone, and keeps its place for %.0f s",
                        node_text(*membership_.find(id)), id.value(),
                        seconds(options_.membership.vouched_limit)));
  }
  for (const NodeId id : before) {
    const NodeInfo* node = vouched_for_.contains(id) ? nullptr : membership_.find(id);
    if (node == nullptr) continue;
    note(EventKind::kJoin,
         absl::StrFormat("%s (node %d) is heard again", node_text(*node), id.value()));
  }
}

/// No deadline of the job counts time in which this process stood still or heard nobody; before
/// anything is judged by how long it took. False: it hears nobody now.
bool Cluster::forgive_job(Nanoseconds now) {
  const Nanoseconds since_seen = now - std::exchange(last_seen_, now);
  const bool was_cut_off = std::exchange(is_cut_off_, membership_.isolated_since().has_value());
  const auto forgive_from = [&](Nanoseconds begin) {
    begin = std::max(begin, forgiven_until_);
    forgiven_until_ = now;
    if (begin < now && job_ && !job_->ended()) job_->forgive(now - begin, now);
  };
  const bool is_first = since_seen == now;
  if (was_cut_off || (since_seen > options_.membership.lease && !is_first)) {
    forgive_from(now - since_seen);
  }
  if (is_cut_off_) forgive_from(*membership_.isolated_since());
  return !is_cut_off_;
}

void Cluster::watch_drift(Nanoseconds now) {
  const std::vector<MeasuredLayer> measured = traffic_->slowest();
  if (measured.empty()) return;
  std::vector<LayerTimes> times;
  for (std::size_t l = 0; l < measured.size(); ++l) {
    times.push_back({.name = job_->plan()->layers[l].name,
                     .forward_s = measured[l].forward_s,
                     .backward_s = measured[l].backward_s});
  }
  apply(job_->on_measured_times(times, now));
}

/// Events of the job go on meanwhile, its deadlines do not: nobody ticks.
void Cluster::end_before_shutdown(const std::string& reason, std::unique_lock<std::mutex>& lock) {
  if (!job_ || job_->ended()) return;
  const std::string why = absl::StrCat("the coordinator was stopped (", reason, ")");
  const Nanoseconds patience = options_.shutdown_checkpoint_timeout;
  apply(job_->stop(why, patience, clock_->now()));
  job_changed_.wait_for(lock, patience, [this] { return job_->ended(); });
  apply(job_->stop(why, Nanoseconds::zero(), clock_->now()));
}

/// Nodes may be stopped, too, before the next process comes.
void Cluster::save_before_shutdown(std::unique_lock<std::mutex>& lock) {
  if (!job_ || job_->ended()) return;
  job_->drop_change();  // for which nodes would be stopped that are to train on
  const bool has_trained_on = job_->progress(clock_->now()).completed > job_->first_iteration();
  const Nanoseconds patience = options_.shutdown_checkpoint_timeout;
  if (patience > Nanoseconds::zero() && has_trained_on) {
    if (absl::StatusOr<JobActions> asked = job_->save_checkpoint(clock_->now()); asked.ok()) {
      apply(*asked);
      job_changed_.wait_for(lock, patience, [this] {
        return job_->state() != JobState::kRunning || !job_->checkpoints().asked_for();
      });
    }
  }
  if (job_->ended()) return;
  note(EventKind::kJob,
       absl::StrCat(
           job_text(),
           job_->state() == JobState::kRunning ? "; its nodes train on" : "; its nodes wait",
           ", and the next coordinator with this state directory goes on with it"));
}

void Cluster::shutdown(const std::string& reason, std::optional<OnShutdown> how) {
  std::unique_lock<std::mutex> lock(mutex_);
  shutting_down_ = true;
  const bool was_told_to_end = job_ && job_->is_stopping();
  if (how.value_or(options_.on_shutdown) == OnShutdown::kKeepJob && !was_told_to_end) {
    save_before_shutdown(lock);
  } else {
    end_before_shutdown(reason, lock);
  }
  // Whose manifests go are forgotten by the servers that are here.
  job_changed_.wait_for(lock, kSettleTimeout, [this] { return settling_.empty(); });
  if (trace_) {
    trace_sink_->finish(absl::UnavailableError("the coordinator stops"));
    trace_.reset();
    trace_sink_.reset();
  }
  for (auto& [link, attached] : attached_) {
    link->close(absl::UnavailableError(absl::StrCat("the coordinator stops (", reason, ")")));
  }
  attached_.clear();
  if (!job_) return;
  if (!job_->ended()) directory_->close(RunEnd::kLeft);
  files_closed_changed_.wait_for(lock, kFilesTimeout, [this] { return files_closed_; });
  if (!job_->ended()) return;
  forget_followers(clock_->now());
  follower_told_.wait_for(lock, options_.last_words, [this] {
    return std::ranges::all_of(followers_, [](const auto& entry) { return entry.second.end_told; });
  });
}

}  // namespace poseidon
