#include "server/store/checkpoint_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files/file_io.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

std::int64_t bytes_of(const ChunkView& chunk) {
  return static_cast<std::int64_t>(chunk.parameters.size_bytes() + chunk.state0.size_bytes() +
                                   chunk.state1.size_bytes());
}

Nanoseconds now() { return SystemClock().now(); }

}  // namespace

CheckpointKeeper::CheckpointKeeper(std::unique_ptr<ChunkStore> store, Background* background,
                                   std::shared_ptr<NodeProbe> probe)
    : background_(background),
      probe_(std::move(probe)),
      store_(std::move(store)),
      queue_(probe_, NodeGauge::kCheckpointQueue) {
  const absl::StatusOr<std::vector<SnapshotId>> sealed = store_->list();
  if (sealed.ok() && !sealed->empty()) {
    newest_epoch_ = snapshot_epoch(*std::ranges::max_element(*sealed)).value();
  }
  if (probe_ != nullptr) {
    enqueue([this] {
      disk_.assert_held();
      show_store();
    });
  }
}

void CheckpointKeeper::show_store() {
  if (probe_ == nullptr) return;
  const StoreFigures figures = store_->figures();
  probe_->set(NodeGauge::kStoreSnapshots, figures.snapshots);
  probe_->set(NodeGauge::kStoreBytes, figures.bytes);
  probe_->set(NodeGauge::kStoreFiles, figures.files);
  probe_->set(NodeGauge::kStoreMemoryBytes, figures.memory_bytes);
  probe_->set(NodeGauge::kStoreErrors, figures.errors);
}

void CheckpointKeeper::begin(Epoch epoch, std::size_t pieces, ResultCallback on_result) {
  {
    const MutexLock lock(mutex_);
    states_.begin(epoch);
  }
  enqueue_change([this, epoch, pieces, on_result = std::move(on_result)] {
    disk_.assert_held();
    change_epoch(epoch, pieces, on_result);
  });
}

void CheckpointKeeper::end(Epoch epoch) {
  {
    const MutexLock lock(mutex_);
    if (states_.epoch() == epoch) states_.begin(Epoch(0));
  }
  enqueue_change([this, epoch] {
    disk_.assert_held();
    if (epoch_ == epoch) change_epoch(Epoch(0), 0, nullptr);
  });
}

void CheckpointKeeper::change_epoch(Epoch epoch, std::size_t pieces, ResultCallback on_result) {
  epoch_ = epoch;
  on_result_ = std::move(on_result);
  started_.clear();
  for (const SnapshotId snapshot : progress_.begin(epoch, pieces)) remove_own(snapshot);
  if (epoch == Epoch(0)) return;  // what the last one made may still be forgotten
  of_others_.clear();
  std::erase_if(left_over_, [epoch](SnapshotId one) { return snapshot_epoch(one) == epoch; });
  if (const auto sealed = store_->list(); sealed.ok()) {
    for (const SnapshotId snapshot : *sealed) {
      if (snapshot_epoch(snapshot) == epoch) of_others_.insert(snapshot);
    }
  }
  if (owner_.begin_epoch()) remember_owner();
}

void CheckpointKeeper::remove_now(SnapshotId snapshot) {
  const absl::Status removed = store_->remove(snapshot);
  if (removed.ok()) {
    left_over_.erase(snapshot);
  } else if (left_over_.insert(snapshot).second) {
    spdlog::warn("{}; it is tried again", std::string(removed.message()));
  }
  show_store();
}

/// Otherwise each would occupy the disk until this process joins a coordinator again.
void CheckpointKeeper::remove_left_overs() {
  for (const SnapshotId snapshot : std::set(left_over_)) remove_now(snapshot);
}

/// Only checkpoints of this epoch, not others that have the same number by chance.
void CheckpointKeeper::remove_own(SnapshotId snapshot) {
  if (!of_others_.contains(snapshot)) {
    remove_now(snapshot);
    return;
  }
  spdlog::error("the part of checkpoint {} belongs to another coordinator and is kept",
                snapshot_name(snapshot));
}

absl::Status CheckpointKeeper::admit(SnapshotId snapshot) {
  absl::Status status = progress_.admit(snapshot);
  const bool known = std::any_of(started_.begin(), started_.end(),
                                 [snapshot](const Started& s) { return s.snapshot == snapshot; });
  if (status.ok() && !known) started_.push_back({snapshot, std::chrono::steady_clock::now()});
  // Another coordinator would later take this one's snapshots for its own, and remove them.
  if (status.ok() && !owner_status_.ok()) {
    remember_owner();
    status = owner_status_;
    if (!status.ok()) fail(snapshot, status);
  }
  if (absl::IsOutOfRange(status)) fail(snapshot, status);
  return status;
}

absl::Status CheckpointKeeper::store(SnapshotId snapshot, const ChunkView& chunk) {
  const Nanoseconds since = now();
  if (absl::Status status = store_->put(snapshot, chunk); !status.ok()) {
    fail(snapshot, status);
    return status;
  }
  wrote(snapshot, since, chunk.piece, bytes_of(chunk));
  if (!progress_.stored(snapshot, chunk.piece, bytes_of(chunk))) return absl::OkStatus();
  const Nanoseconds sealing = now();
  if (absl::Status status = store_->seal(snapshot); !status.ok()) {
    fail(snapshot, status);
    return status;
  }
  wrote(snapshot, sealing, std::nullopt, 0);
  const std::int64_t bytes = progress_.bytes(snapshot);
  progress_.sealed(snapshot);
  newest_epoch_ = std::max(newest_epoch_.load(), snapshot_epoch(snapshot).value());
  remove_left_overs();
  show_store();
  report(snapshot, absl::OkStatus(), bytes);
  return absl::OkStatus();
}

void CheckpointKeeper::wrote(SnapshotId snapshot, Nanoseconds since, std::optional<PieceId> piece,
                             std::int64_t bytes) {
  if (probe_ == nullptr) return;
  const auto size = static_cast<std::uint64_t>(bytes);
  probe_->count(NodeCount::kStoreWrittenBytes, size);
  probe_->took({.stage = Stage::kWrite,
                .begin = since,
                .end = now(),
                .iteration = snapshot_iteration(snapshot),
                .chunk = piece ? std::optional(ChunkId(piece->value())) : std::nullopt,
                .bytes = size});
}

void CheckpointKeeper::put(SnapshotId snapshot, FrozenChunk chunk) {
  bool may_wait = false, is_first = false;
  {
    const MutexLock lock(mutex_);
    may_wait = queued_chunks_.contains(snapshot) || queued_chunks_.size() < kMaxOpenSnapshots ||
               snapshot == expected_;
    if (may_wait) {
      ++queued_chunks_[snapshot];
      queue_.set(queue_.value() + 1);
      frozen_.push_back({snapshot, std::move(chunk)});
      is_first = !std::exchange(writes_frozen_, true);
    }
  }
  if (is_first) enqueue_writes();
  if (may_wait) return;
  enqueue([this, snapshot] {
    disk_.assert_held();
    if (snapshot_epoch(snapshot) == epoch_) fail(snapshot, SnapshotProgress::too_many(snapshot));
  });
}

void CheckpointKeeper::enqueue(std::function<void()> task) {
  background_->enqueue([this, task = std::move(task)] {
    const ScopedThreadRole role(disk_);
    task();
  });
}

void CheckpointKeeper::enqueue_writes() {
  enqueue([this] {
    disk_.assert_held();
    write_frozen();
  });
}

void CheckpointKeeper::enqueue_change(std::function<void()> change) {
  {
    const MutexLock lock(mutex_);
    ++changes_;
  }
  enqueue([this, change = std::move(change)] {
    disk_.assert_held();
    {
      const MutexLock lock(mutex_);
      --changes_;
    }
    change();
  });
}

/// Nothing: none waits, or others have their turn first.
std::optional<CheckpointKeeper::Waiting> CheckpointKeeper::next_frozen() {
  const MutexLock lock(mutex_);
  if (frozen_.empty() || changes_ > 0) return std::nullopt;
  Waiting next = std::move(frozen_.front());
  frozen_.pop_front();
  if (--queued_chunks_[next.snapshot] == 0) queued_chunks_.erase(next.snapshot);
  queue_.set(queue_.value() - 1);
  return next;
}

/// One turn. What is not wanted any more, as its epoch is over, goes unwritten.
void CheckpointKeeper::write_frozen() {
  for (std::int64_t bytes = 0; bytes < kBytesPerTurn;) {
    const std::optional<Waiting> next = next_frozen();
    if (!next) break;
    if (!admit(next->snapshot).ok()) continue;
    const FrozenChunk& chunk = next->chunk;
    const ChunkView view{PieceId(chunk.chunk.value()), chunk.version, chunk.parameters.floats(),
                         chunk.state0.floats(), chunk.state1.floats()};
    bytes += bytes_of(view);
    (void)store(next->snapshot, view);
  }
  {
    const MutexLock lock(mutex_);
    writes_frozen_ = !frozen_.empty();
    if (!writes_frozen_) return;
  }
  enqueue_writes();
}

void CheckpointKeeper::put(SnapshotId snapshot, StoredChunk piece, WriteCallback done) {
  auto shared = std::make_shared<const StoredChunk>(std::move(piece));
  enqueue([this, snapshot, shared, done = std::move(done)] {
    disk_.assert_held();
    absl::Status status = admit(snapshot);
    if (status.ok()) {
      status = store(snapshot, {shared->piece, shared->version, shared->parameters, shared->state0,
                                shared->state1});
    } else if (progress_.is_sealed(snapshot)) {
      status = absl::OkStatus();  // the answer to the first time was lost
    }
    done(status);
  });
}

void CheckpointKeeper::expect(SnapshotId snapshot) {
  {
    const MutexLock lock(mutex_);
    expected_ = snapshot;
  }
  enqueue_change([this, snapshot] {
    disk_.assert_held();
    if (snapshot_epoch(snapshot) != epoch_) return;
    if (!progress_.is_gone(snapshot)) {
      progress_.make_room(snapshot);
      return;
    }
    report(snapshot,
           absl::AbortedError("an earlier attempt at this iteration has failed, on this server or "
                              "another"),
           0);
  });
}

void CheckpointKeeper::forget(SnapshotId snapshot) {
  enqueue_change([this, snapshot] {
    disk_.assert_held();
    cached_ = nullptr;
    const bool is_of_epoch = snapshot_epoch(snapshot) == epoch_;
    const bool was_sealed = is_of_epoch && progress_.is_sealed(snapshot);
    if (is_of_epoch && progress_.forget(snapshot)) {
      std::erase_if(started_, [snapshot](const Started& s) { return s.snapshot == snapshot; });
    }
    remove_own(snapshot);
    // Otherwise another coordinator, which gets all reports again, would count it.
    if (was_sealed) report(snapshot, absl::CancelledError("it is not wanted any more"), 0);
  });
}

void CheckpointKeeper::fail(SnapshotId snapshot, const absl::Status& status) {
  if (!progress_.failed(snapshot)) return;
  remove_left_overs();
  remove_own(snapshot);
  report(snapshot, status, 0);
}

void CheckpointKeeper::report(SnapshotId snapshot, const absl::Status& status, std::int64_t bytes) {
  const auto started = std::find_if(started_.begin(), started_.end(), [snapshot](const Started& s) {
    return s.snapshot == snapshot;
  });
  SnapshotResult result{.snapshot = snapshot, .status = status, .bytes = bytes};
  if (started != started_.end()) {
    result.seconds = seconds(std::chrono::steady_clock::now() - started->at);
    started_.erase(started);
  }
  if (on_result_) on_result_(result);
}

void CheckpointKeeper::read(SnapshotId snapshot, PieceId piece, ReadCallback done) {
  enqueue([this, snapshot, piece, done = std::move(done)] {
    disk_.assert_held();
    if (cached_ == nullptr || cached_of_ != snapshot || cached_->piece != piece) {
      cached_ = nullptr;
      absl::StatusOr<StoredChunk> chunk = store_->get(snapshot, piece);
      if (!chunk.ok()) {
        done(chunk.status());
        return;
      }
      cached_of_ = snapshot;
      cached_ = std::make_shared<const StoredChunk>(*std::move(chunk));
    }
    done(cached_);
  });
}

// ---- whose the snapshots are ----

void CheckpointKeeper::remember_owner_in(std::filesystem::path file) {
  enqueue([this, file = std::move(file)] {
    disk_.assert_held();
    remove_leftovers(file);
    absl::StatusOr<std::string> owner = read_store_owner(file);
    if (!owner.ok()) {
      spdlog::warn(
          "{}; no checkpoint is removed from the store automatically: check the file, then remove "
          "it",
          std::string(owner.status().message()));
    }
    owner_file_ = file;
    owner_ = StoreOwner(owner.ok() ? *std::move(owner) : StoreOwner::kNobody);
  });
}

void CheckpointKeeper::remember_owner() {
  if (owner_file_.empty()) return;
  owner_status_ = write_file_atomically(owner_file_, absl::StrCat(owner_.owner(), "\n"));
  if (!owner_status_.ok()) spdlog::error("{}", std::string(owner_status_.message()));
}

void CheckpointKeeper::keep_only(WantedSnapshots wanted) {
  enqueue([this, wanted = std::move(wanted)] {
    disk_.assert_held();
    keep_only_now(wanted);
  });
}

void CheckpointKeeper::keep_only_now(const WantedSnapshots& wanted) {
  const absl::StatusOr<std::vector<SnapshotId>> sealed = store_->list();
  if (owner_file_.empty() || !sealed.ok()) return;
  const std::string before = owner_.owner();
  const std::vector<SnapshotId> unwanted = owner_.unwanted(wanted, *sealed, epoch_);
  if (owner_.owner() != before) remember_owner();
  // As long as the file does not say so, the next process would not know whose they are.
  if (!owner_status_.ok()) return;
  cached_ = nullptr;
  left_over_.clear();  // perhaps of another coordinator; this one's are unwanted once more
  for (const SnapshotId snapshot : unwanted) {
    spdlog::info(
        "the part of checkpoint {} is removed: the coordinator knows of no such checkpoint",
        snapshot_name(snapshot));
    remove_now(snapshot);
  }
}

// ---- worker 0's own state ----

absl::Status CheckpointKeeper::hold_state(SnapshotId snapshot, std::vector<float> state) {
  auto shared = std::make_shared<const std::vector<float>>(std::move(state));
  const MutexLock lock(mutex_);
  return states_.hold(snapshot, std::move(shared));
}

HeldStates::State CheckpointKeeper::held_state(SnapshotId snapshot) {
  const MutexLock lock(mutex_);
  return states_.find(snapshot);
}

std::optional<CheckpointKeeper::StateRange> CheckpointKeeper::held_states() {
  const MutexLock lock(mutex_);
  if (states_.empty()) return std::nullopt;
  return StateRange{.oldest = states_.oldest(), .newest = states_.newest()};
}

absl::Status CheckpointKeeper::put_held_state(SnapshotId snapshot, PieceId piece) {
  StoredChunk stored{.piece = piece, .version = snapshot_iteration(snapshot)};
  {
    const MutexLock lock(mutex_);
    const HeldStates::State state = states_.find(snapshot);
    if (state == nullptr && !states_.empty()) {
      return absl::NotFoundError(absl::StrCat("worker 0's own state of version ",
                                              snapshot_iteration(snapshot), " is not held; ",
                                              states_.oldest(), " to ", states_.newest(), " are"));
    }
    if (state != nullptr) stored.parameters = *state;
  }
  put(snapshot, std::move(stored), [](const absl::Status& /*whoever waits hears on_result*/) {});
  return absl::OkStatus();
}

}  // namespace poseidon
