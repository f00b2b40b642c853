#include "coordinator/job/checkpoints/checkpoint_commit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

constexpr std::size_t kMaxRemembered = 1024;
/// Largest lead of an asked-for version; beyond it something else is wrong.
constexpr Iteration kMaxLead = 1 << 20;

template <typename Container>
void forget_oldest(Container& container) {
  while (container.size() > kMaxRemembered) container.erase(container.begin());
}

}  // namespace

CheckpointCommit::CheckpointCommit(CheckpointCommitOptions options, std::int64_t keep,
                                   Iteration last_iteration,
                                   std::vector<CheckpointManifest> committed)
    : options_(options), keep_(keep), last_iteration_(last_iteration) {
  POSEIDON_CHECK(keep_ >= 1, "at least the newest checkpoint is kept");
  for (CheckpointManifest& manifest : committed) {
    committed_.emplace(manifest.snapshot, std::move(manifest));
  }
}

CheckpointActions CheckpointCommit::begin_epoch(Epoch epoch, Iteration first_iteration,
                                                CheckpointManifest frame,
                                                std::uint64_t iteration_samples) {
  CheckpointActions actions;
  // Manifests that are being written stay: their parts are sealed, whatever the epoch.
  std::vector<Iteration> open;
  for (const auto& [iteration, making] : epoch_.making) {
    if (!making.writing) open.push_back(iteration);
  }
  for (const Iteration iteration : open) {
    // Which is no failure of any disk, and is told as what it is.
    give_up(iteration, "the epoch ended before it was whole", actions, /*has_failed=*/false);
  }
  asked_.reset();
  asks_again_.reset();
  needed_.reset();
  // What the epoch before has told may still wait for the disk; lines come in their order.
  told_ = epoch_.id == Epoch(0) ? first_iteration : std::min(told_, first_iteration);
  epoch_ = {.id = epoch,
            .frame = std::move(frame),
            .iteration_samples = iteration_samples,
            .first_iteration = first_iteration,
            .furthest = first_iteration,
            .settled_until = first_iteration,
            .lead = options_.lead};
  // By an earlier coordinator, in the same epoch.
  for (const auto& [snapshot, manifest] : committed_) {
    if (snapshot_epoch(snapshot) != epoch) continue;
    epoch_.settled_until = std::max(epoch_.settled_until, manifest.iteration());
  }
  epoch_.in_use = stores_in_use(epoch_.frame);
  epoch_.stores_needed =
      static_cast<std::size_t>(std::count(epoch_.in_use.begin(), epoch_.in_use.end(), true));
  return actions;
}

void CheckpointCommit::give_up(Iteration iteration, const std::string& reason,
                               CheckpointActions& actions, bool has_failed) {
  const SnapshotId snapshot = snapshot_id(epoch_.id, iteration);
  epoch_.making.erase(iteration);
  epoch_.given_up.insert(iteration);
  forget_oldest(epoch_.given_up);
  if (asked_ == iteration) {
    asked_.reset();
    asks_again_.reset();
  }
  last_ = {.snapshot = snapshot, .committed = false, .reason = reason};
  if (has_failed) ++totals_.failures;
  actions.emplace_back(ForgetParts{.snapshot = snapshot, .stores = epoch_.frame.stores});
  actions.emplace_back(CheckpointLog{
      .alarm = has_failed,
      .text = absl::StrCat(
          "checkpoint ", snapshot_name(snapshot),
          has_failed ? " failed: " : " was given up: ", reason, "; ",
          committed_.empty()
              ? "there is no earlier one"
              : absl::StrCat("the last good one is ", snapshot_name(committed_.rbegin()->first)))});
}

CheckpointActions CheckpointCommit::on_report(const Report& report, std::int64_t now_unix_s,
                                              Nanoseconds now) {
  CheckpointActions actions;
  const Iteration iteration = report.iteration;
  const SnapshotId snapshot = snapshot_id(epoch_.id, iteration);
  // All servers have it. What is said of it now is said again, or by who missed an answer.
  if (committed_.contains(snapshot) || writing_.contains(snapshot)) return actions;
  // They had it: `keep` has removed it meanwhile. What somebody waits for is another matter.
  const bool was_committed =
      epoch_.settled.contains(iteration) || iteration <= epoch_.settled_until;
  if (!report.stored && was_committed && asked_ != iteration) return actions;
  // A part of what was given up meanwhile: it has been told to forget it, or will be now.
  if (epoch_.given_up.contains(iteration)) {
    if (report.stored) {
      actions.emplace_back(ForgetParts{.snapshot = snapshot, .stores = epoch_.frame.stores});
    }
    return actions;
  }
  if (!report.stored) {
    const bool is_busy = report.missing == MissingPart::kBusy && !asked_is_held_ &&
                         now - asked_since_ < options_.timeout;
    if (asked_ != iteration || !(report.missing == MissingPart::kTooLate || is_busy)) {
      give_up(iteration, absl::StrCat(report.who, ": ", report.reason), actions);
      return actions;
    }
    epoch_.making.erase(iteration);
    epoch_.given_up.insert(iteration);
    actions.emplace_back(ForgetParts{.snapshot = snapshot, .stores = epoch_.frame.stores});
    if (is_busy) {
      asks_again_ = now + options_.busy_pause;
    } else {
      epoch_.lead = std::min(epoch_.lead * 2, kMaxLead);
      ask_further(now, actions);
    }
    return actions;
  }
  if (!report.server || !epoch_.in_use[report.server->value()]) return actions;
  Making& making = epoch_.making[iteration];
  if (making.stored.empty()) making.begun = now;
  if (!making.stored.insert(*report.server).second) return actions;
  making.bytes += report.bytes;
  making.seconds = std::max(making.seconds, report.seconds);
  if (making.stored.size() < epoch_.stores_needed) return actions;
  making.writing = true;
  CheckpointManifest manifest = epoch_.frame;
  manifest.snapshot = snapshot;
  manifest.samples +=
      static_cast<std::uint64_t>(iteration - epoch_.first_iteration) * epoch_.iteration_samples;
  manifest.bytes = making.bytes;
  manifest.time_unix_s = now_unix_s;
  if (const auto loss = epoch_.losses.find(iteration - 1); loss != epoch_.losses.end()) {
    manifest.loss = loss->second;
  }
  writing_.emplace(snapshot, manifest);
  actions.emplace_back(WriteManifest{std::move(manifest)});
  return actions;
}

absl::StatusOr<CheckpointActions> CheckpointCommit::ask(Iteration completed, Nanoseconds now) {
  if (asked_) {
    return absl::FailedPreconditionError(
        absl::StrCat("a checkpoint at iteration ", *asked_, " is asked for already"));
  }
  epoch_.furthest = std::max(epoch_.furthest, completed);
  epoch_.lead = options_.lead;
  asked_since_ = now;
  asked_is_held_ = false;
  CheckpointActions actions;
  ask_further(now, actions);
  return actions;
}

void CheckpointCommit::mark_asked() {
  if (asked_) {
    for_operators_.insert(snapshot_id(epoch_.id, *asked_));
  } else if (last_) {
    for_operators_.insert(last_->snapshot);
  }
  forget_oldest(for_operators_);
}

CheckpointActions CheckpointCommit::ask_held(Iteration version, Nanoseconds now) {
  CheckpointActions actions;
  if (asked_ && *asked_ != version) {
    // Training will not get there. Its parts, if it has any, go with the epoch.
    epoch_.given_up.insert(*asked_);
    epoch_.making.erase(*asked_);
  }
  asked_ = version;
  asked_is_held_ = true;
  asks_again_.reset();
  if (epoch_.given_up.contains(version)) {
    give_up(version, "an earlier attempt at this iteration has failed", actions);
    return actions;
  }
  Making& making = epoch_.making[version];
  if (making.writing) return actions;
  making.begun = now;
  actions.emplace_back(AskForCheckpoint{version});
  return actions;
}

CheckpointActions CheckpointCommit::end_at(Iteration last_iteration) {
  CheckpointActions actions;
  last_iteration_ = last_iteration;
  if (asked_ && *asked_ > last_iteration_) {
    give_up(*asked_, "training ended before it", actions);
  }
  return actions;
}

void CheckpointCommit::ask_further(Nanoseconds now, CheckpointActions& actions) {
  asks_again_.reset();
  const Iteration least = asked_.value_or(0) + 1;
  if (least > last_iteration_) {
    give_up(*asked_, "training reached its last iteration before the nodes heard of it", actions);
    return;
  }
  const bool operator_waits = asked_ && is_asked(snapshot_id(epoch_.id, *asked_));
  asked_ = std::min(std::max(least, epoch_.furthest + epoch_.lead), last_iteration_);
  while (epoch_.given_up.contains(*asked_) && *asked_ < last_iteration_) ++*asked_;
  if (operator_waits) for_operators_.insert(snapshot_id(epoch_.id, *asked_));
  if (epoch_.given_up.contains(*asked_)) {
    give_up(*asked_, "no iteration is left but the last, whose checkpoint has failed", actions);
    return;
  }
  const SnapshotId snapshot = snapshot_id(epoch_.id, *asked_);
  if (writing_.contains(snapshot)) return;
  if (committed_.contains(snapshot)) {  // training is further than its reports: here it is
    last_ = {.snapshot = snapshot, .committed = true, .reason = ""};
    asked_.reset();
    return;
  }
  epoch_.making[*asked_].begun = now;
  actions.emplace_back(AskForCheckpoint{*asked_});
}

void CheckpointCommit::on_loss(Iteration iteration, std::optional<double> loss) {
  epoch_.furthest = std::max(epoch_.furthest, iteration + 1);
  if (loss) epoch_.losses[iteration] = *loss;
  forget_oldest(epoch_.losses);
}

CheckpointActions CheckpointCommit::on_told(SnapshotId version) {
  CheckpointActions actions;
  if (snapshot_epoch(version) != epoch_.id) return actions;
  told_ = std::max(told_, snapshot_iteration(version));
  epoch_.furthest = std::max(epoch_.furthest, told_);
  drop_oldest(actions);
  return actions;
}

void CheckpointCommit::abandon_beyond(Iteration iteration, Epoch epoch) {
  for (const auto* manifests : {&committed_, &writing_}) {
    for (const auto& [snapshot, manifest] : *manifests) {
      if (snapshot_epoch(snapshot) != epoch && manifest.iteration() > iteration) abandon(snapshot);
    }
  }
}

CheckpointActions CheckpointCommit::on_manifest_written(SnapshotId snapshot,
                                                        const absl::Status& status) {
  CheckpointActions actions;
  auto written = writing_.extract(snapshot);
  if (written.empty()) return actions;
  const bool of_this_epoch = snapshot_epoch(snapshot) == epoch_.id;
  const Iteration iteration = snapshot_iteration(snapshot);
  if (!status.ok()) {
    abandoned_.erase(snapshot);
    if (of_this_epoch) {
      give_up(iteration, std::string(status.message()), actions);
    } else {
      actions.emplace_back(ForgetParts{.snapshot = snapshot, .stores = written.mapped().stores});
    }
    return actions;
  }
  if (of_this_epoch) {
    if (const auto made = epoch_.making.find(iteration); made != epoch_.making.end()) {
      totals_.slowest_seconds = made->second.seconds;
      epoch_.making.erase(made);
    }
    epoch_.settled.insert(iteration);
    forget_oldest(epoch_.settled);
    if (asked_ == iteration) asked_.reset();
  }
  last_ = {.snapshot = snapshot, .committed = true, .reason = ""};
  ++totals_.commits;
  actions.emplace_back(CheckpointLog{
      .alarm = false,
      .text = absl::StrFormat("checkpoint %s is committed: iteration %d, %d bytes on %d servers",
                              snapshot_name(snapshot), iteration, written.mapped().bytes,
                              written.mapped().stores.size())});
  committed_.emplace(snapshot, std::move(written.mapped()));
  drop_oldest(actions);
  if (asks_again_) ask_further(*asks_again_, actions);  // there is room now
  return actions;
}

/// The newest of this course until this iteration.
std::optional<SnapshotId> CheckpointCommit::newest_until(Iteration limit) const {
  std::optional<SnapshotId> own, earlier;
  for (const auto& [snapshot, manifest] : committed_) {  // oldest first
    const Iteration iteration = manifest.iteration();
    if (!is_usable(snapshot) || iteration > limit) continue;
    if (snapshot_epoch(snapshot) == epoch_.id) {
      own = snapshot;
    } else if (!earlier || iteration >= snapshot_iteration(*earlier)) {
      earlier = snapshot;
    }
  }
  return own ? own : earlier;
}

/// What a recovery would begin from, came it now: the newest that all have told of; and one by
/// another process, to which those lines do not exist that are not on disk.
std::set<SnapshotId> CheckpointCommit::fallbacks() const {
  std::set<SnapshotId> kept;
  for (const auto& snapshot : {newest_until(told_), newest_until(epoch_.furthest), needed_}) {
    if (snapshot) kept.insert(*snapshot);
  }
  return kept;
}

void CheckpointCommit::drop_oldest(CheckpointActions& actions) {
  const std::set<SnapshotId> kept = fallbacks();
  // First what no recovery would begin from: it must not take the place of what one would.
  std::vector<SnapshotId> order;
  for (const bool usable : {false, true}) {
    for (const auto& [snapshot, manifest] : committed_) {
      if (is_usable(snapshot) == usable) order.push_back(snapshot);
    }
  }
  for (const SnapshotId snapshot : order) {
    if (committed_.size() <= static_cast<std::size_t>(keep_)) break;
    const auto oldest = committed_.find(snapshot);
    if (kept.contains(oldest->first) || oldest->first == newest()->snapshot) continue;
    auto dropped = committed_.extract(oldest);
    if (dropped.mapped().job_id != epoch_.frame.job_id) continue;
    actions.emplace_back(RemoveManifest{dropped.mapped()});
    removing_.emplace(dropped.key(), std::move(dropped.mapped()));
  }
}

CheckpointActions CheckpointCommit::on_manifest_removed(SnapshotId snapshot,
                                                        const absl::Status& status) {
  CheckpointActions actions;
  const bool is_ours = removing_.contains(snapshot);
  if (!is_ours && !committed_.contains(snapshot)) return actions;
  if (!status.ok()) {
    removing_.erase(snapshot);
    // It is still there, so its parts must be too.
    actions.emplace_back(
        CheckpointLog{.alarm = true,
                      .text = absl::StrCat("checkpoint ", snapshot_name(snapshot),
                                           " could not be removed: ", status.message())});
    return actions;
  }
  auto removed = is_ours ? removing_.extract(snapshot) : committed_.extract(snapshot);
  abandoned_.erase(snapshot);
  actions.emplace_back(ForgetParts{.snapshot = snapshot, .stores = removed.mapped().stores});
  return actions;
}

std::optional<Iteration> CheckpointCommit::awaited_from(std::optional<ServerIndex> server) const {
  if (!asked_ || asks_again_) return std::nullopt;
  const auto making = epoch_.making.find(*asked_);
  if (making == epoch_.making.end()) return asked_;
  const bool has_it = server && making->second.stored.contains(*server);
  return making->second.writing || has_it ? std::nullopt : asked_;
}

std::optional<Iteration> CheckpointCommit::in_the_making() const {
  if (epoch_.making.empty()) return asked_;
  return std::max(epoch_.making.rbegin()->first, asked_.value_or(0));
}

CheckpointActions CheckpointCommit::tick(Nanoseconds now) {
  CheckpointActions actions;
  if (asks_again_ && now >= *asks_again_) ask_further(now, actions);
  std::vector<Iteration> late;
  for (auto& [iteration, making] : epoch_.making) {
    // One that is asked for waits for training to get there first, however long that takes.
    if (making.stored.empty() && epoch_.furthest < iteration) making.begun = now;
    if (!making.writing && now - making.begun > options_.timeout) late.push_back(iteration);
  }
  for (const Iteration iteration : late) {
    std::vector<std::string> missing;
    for (std::uint32_t s = 0; s < epoch_.frame.stores.size(); ++s) {
      if (epoch_.in_use[s] && !epoch_.making[iteration].stored.contains(ServerIndex(s))) {
        missing.push_back(absl::StrCat("server ", s));
      }
    }
    give_up(iteration,
            absl::StrFormat("not stored after %.0f s by %s", seconds(options_.timeout),
                            absl::StrJoin(missing, ", ")),
            actions);
  }
  return actions;
}

const CheckpointManifest* CheckpointCommit::newest_usable() const {
  const auto found = std::find_if(committed_.rbegin(), committed_.rend(),
                                  [this](const auto& one) { return is_usable(one.first); });
  return found == committed_.rend() ? nullptr : &found->second;
}

}  // namespace poseidon
