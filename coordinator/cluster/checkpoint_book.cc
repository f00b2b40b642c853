#include "coordinator/cluster/checkpoint_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "coordinator/members/admission.h"
#include "spdlog/spdlog.h"

namespace poseidon {

CheckpointBook::CheckpointBook(ClusterContext& context, const Membership& membership,
                               NodeStreams& streams, Watch& watch, Done on_written, Done on_removed)
    : context_(context),
      membership_(membership),
      streams_(streams),
      watch_(watch),
      on_written_(std::move(on_written)),
      on_removed_(std::move(on_removed)),
      archive_(context.state->path() / "checkpoints"),
      newest_epoch_(context.state->last_given()) {
  // When no epoch was ever given there is no checkpoint; if the folder cannot be made, the first
  // checkpoint reports it.
  if (context.state->is_new()) (void)archive_.create();
  std::vector<std::string> unreadable;
  for (CheckpointManifest& manifest : archive_.load(unreadable)) catalog_.add(std::move(manifest));
  for (const std::string& text : unreadable) {
    spdlog::error("cannot be read as a checkpoint: {}; servers remove no unknown checkpoints",
                  one_line(text));
  }
  knows_all_ = unreadable.empty();
  catalog_.set_unread(std::move(unreadable));
  if (knows_all_) (void)archive_.create();  // earlier versions made no marker
  if (!catalog_.all().empty()) {
    spdlog::info("{} committed checkpoints, the newest is {}", catalog_.all().size(),
                 snapshot_name(catalog_.all().rbegin()->first));
  }
}

std::string CheckpointBook::doubt_about(const std::string& id) const {
  return id.empty() ? one_line(catalog_.doubt_about_newest()) : "";
}

std::vector<CheckpointManifest> CheckpointBook::load_of_job(const std::string& job_id) const {
  std::vector<std::string> unreadable;
  std::vector<CheckpointManifest> all = archive_.load(unreadable);
  for (const std::string& what : unreadable) spdlog::error("{}", one_line(what));
  std::erase_if(all, [&](const CheckpointManifest& manifest) { return manifest.job_id != job_id; });
  return all;
}

void CheckpointBook::write(const CheckpointManifest& manifest) {
  settling_.insert(manifest.snapshot);
  archive_.write(*context_.disk.background, manifest, [this, manifest](const absl::Status& status) {
    MutexLock lock(context_.mutex);
    settling_.erase(manifest.snapshot);
    if (status.ok()) catalog_.add(manifest);
    on_written_(manifest, status);
  });
}

void CheckpointBook::remove(const CheckpointManifest& manifest) {
  if (!catalog_.remove(manifest, context_.now())) return;
  settling_.insert(manifest.snapshot);
  archive_.remove(*context_.disk.background, manifest,
                  [this, manifest](const absl::Status& status) {
                    MutexLock lock(context_.mutex);
                    settling_.erase(manifest.snapshot);
                    // It is still there, and so are its parts.
                    if (!status.ok()) catalog_.add(manifest);
                    on_removed_(manifest, status);
                  });
}

void CheckpointBook::remove_due() {
  for (const CheckpointManifest& manifest : catalog_.take_due(context_.now())) remove(manifest);
}

void CheckpointBook::send_forget(const ForgetParts& forget) {
  v1::CoordinatorMessage message;
  message.mutable_forget_checkpoint()->set_snapshot(forget.snapshot.value());
  for (const NodeInfo& node : membership_.nodes()) {
    if (node.role != NodeRole::kServer) continue;
    if (std::ranges::find(forget.stores, node.store_identity) != forget.stores.end()) {
      streams_.send(node.id, message);
    }
  }
}

/// Its checkpoints of such epochs were made for another coordinator, or for this one after its
/// state directory was copied. Then the copy must not decide what servers keep: neither in this
/// process nor, by the copy's name, in a later one, which would take the epochs for its own.
void CheckpointBook::look_for_unknown_epochs(const NodeInfo& server) {
  if (server.newest_epoch <= newest_epoch_ || !knows_all_) return;
  knows_all_ = false;
  const bool is_new = newest_epoch_ == Epoch(0) && catalog_.all().empty();
  watch_.note(
      is_new ? EventKind::kCheckpoint : EventKind::kAlarm,
      absl::StrCat(node_text(server), " has checkpoints of epoch ", server.newest_epoch.value(),
                   ", and this coordinator has begun none after ", newest_epoch_.value(), ": ",
                   is_new ? "they are another coordinator's"
                          : "its state directory is an older copy of the one that made them, or "
                            "they are another coordinator's",
                   "; servers remove no unknown checkpoints"));
  context_.disk.background->enqueue([this] {
    if (const absl::Status status = context_.state->forget_identity(); !status.ok()) {
      spdlog::error(
          "{}; remove it before the next start if servers have checkpoints that are unknown here",
          one_line(std::string(status.message())));
    }
  });
}

void CheckpointBook::send_keep(const NodeInfo& server, std::optional<Epoch> epoch) {
  look_for_unknown_epochs(server);
  v1::CoordinatorMessage message;
  v1::KeepCheckpoints& keep = *message.mutable_keep_checkpoints();
  if (knows_all_) keep.set_identity(context_.state->identity());
  for (const auto& [snapshot, manifest] : catalog_.all()) {
    if (std::ranges::find(manifest.stores, server.store_identity) != manifest.stores.end()) {
      keep.add_snapshots(snapshot.value());
    }
  }
  for (const SnapshotId snapshot : settling_) keep.add_snapshots(snapshot.value());
  if (epoch) keep.set_epoch(epoch->value());
  streams_.send(server.id, message);
}

}  // namespace poseidon
