#include "server/server_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/base/unreachable.h"
#include "common/checkpoint/checkpoint.h"
#include "common/daemon/log.h"
#include "common/job/job.h"
#include "common/node/job_reports.h"
#include "common/node/node_report.h"
#include "common/plan/plan_proto.h"
#include "common/threads/thread_team.h"
#include "server/shard/measure_sums.h"
#include "spdlog/spdlog.h"

namespace poseidon {

namespace {

absl::Status measure(const v1::Calibrate& task, int threads, v1::CalibrationReport& report) {
  if (!task.has_sums()) return absl::InvalidArgumentError("a server computes no layers");
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(task.sums().job_json()));
  if (task.sums().workers() == 0) return absl::InvalidArgumentError("sums of no worker");
  const SystemClock clock;
  ThreadTeam team(threads);  // not the service's, which the loop may call meanwhile
  report.set_server_sum_bytes_per_s(measure_sums({.chunk_bytes = job.sync.largest_chunk_bytes(),
                                                  .workers = task.sums().workers(),
                                                  .optimizer = job.optimizer,
                                                  .max_time = Milliseconds(task.sums().max_ms()),
                                                  .clock = &clock,
                                                  .team = &team}));
  return absl::OkStatus();
}

}  // namespace

ServerNode::ServerNode(const ServerNodeParts& parts)
    : service_(parts.service),
      keeper_(parts.keeper),
      stores_(parts.stores),
      probe_(parts.probe),
      refusals_(parts.refusals),
      metrics_(parts.metrics),
      calibration_(parts.link,
                   [threads = parts.threads](const v1::Calibrate& task, const std::atomic<bool>&,
                                             v1::CalibrationReport& report) {
                     return measure(task, threads, report);
                   }),
      replicas_(parts.stores),
      set_window_(parts.set_window),
      counters_(parts.counters) {
  service_->set_frozen_sink([this](Epoch epoch, FrozenChunk chunk) {
    const SnapshotId snapshot = snapshot_id(epoch, chunk.version);
    loop_.assert_held();
    replicas_.put(snapshot, chunk);  // shares the memory
    keeper_->put(snapshot, std::move(chunk));
  });
}

void ServerNode::on_joined(const v1::Joined& joined) {
  set_log_node(joined.node_id());
  spdlog::info("joined as node {}{}{}", joined.node_id(), joined.note().empty() ? "" : ": ",
               joined.note());
}

void ServerNode::on_assign(const v1::Assignment& assignment) {
  calibration_.end();
  const absl::Status status = assign(assignment);
  if (status.ok()) return;
  spdlog::error("assignment refused: {}", std::string(status.message()));
  client_->send(failed_message(Epoch(assignment.plan().epoch()), status, /*restoring=*/false));
}

void ServerNode::send_checkpoint_report(const SnapshotResult& result, bool too_late) {
  const bool is_removed = absl::IsCancelled(result.status);  // in its turn: no failure
  if (!is_removed) {
    probe_->count(result.status.ok() ? NodeCount::kSnapshotsSealed : NodeCount::kSnapshotsFailed);
  }
  if (result.status.ok()) {
    probe_->count(NodeCount::kSnapshotBytes, static_cast<std::uint64_t>(result.bytes));
    const Nanoseconds now = SystemClock().now();
    const auto took =
        std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(result.seconds));
    probe_->took({.stage = Stage::kCheckpoint,
                  .begin = now - took,
                  .end = now,
                  .iteration = snapshot_iteration(result.snapshot),
                  .bytes = static_cast<std::size_t>(result.bytes)});
    spdlog::info("checkpoint {}: {} bytes on disk in {:.3f} s", snapshot_name(result.snapshot),
                 result.bytes, result.seconds);
  } else if (!is_removed) {
    spdlog::error("checkpoint {} failed: {}", snapshot_name(result.snapshot),
                  std::string(result.status.message()));
  }
  v1::NodeMessage message;
  v1::CheckpointReport& report = *message.mutable_checkpoint();
  report.set_epoch(snapshot_epoch(result.snapshot).value());
  report.set_iteration(static_cast<std::uint64_t>(snapshot_iteration(result.snapshot)));
  report.set_stored(result.status.ok());
  report.set_reason(to_utf8(from_absl(result.status.message())));
  report.set_bytes(static_cast<std::uint64_t>(result.bytes));
  report.set_seconds(result.seconds);
  report.set_too_late(too_late);
  report.set_busy(!too_late && absl::IsOutOfRange(result.status));
  client_->send(std::move(message));
}

absl::Status ServerNode::assign(const v1::Assignment& assignment) {
  POSEIDON_ASSIGN_OR_RETURN(Plan plan, plan_from_assignment(assignment, AssignedRole::kServer));
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(assignment.job_json()));
  if (set_window_) set_window_(plan.window_bytes);
  const Epoch epoch = plan.epoch;
  auto traffic = std::make_shared<TrafficProbe>(plan.layers.size(), probe_);
  {
    const MutexLock lock(mutex_);
    traffic_ = traffic;
    epoch_ = epoch;
  }
  set_log_job(assignment.job_id(), epoch.value());
  std::int64_t parameters = 0;
  for (const PlanChunk& chunk : plan.chunks) {
    if (chunk.server == ServerIndex(assignment.index())) parameters += chunk.elements;
  }
  probe_->set(NodeGauge::kRank, assignment.index());
  probe_->set(NodeGauge::kEpoch, static_cast<std::int64_t>(epoch.value()));
  probe_->set(NodeGauge::kShardParameters, parameters);
  if (metrics_ != nullptr) {
    metrics_->show({.plan = std::make_shared<const Plan>(plan), .traffic = traffic});
  }
  const std::uint32_t workers = plan.workers();
  const ServerIndex self(assignment.index());
  const std::vector<CheckpointPiece> pieces =
      checkpoint_pieces(plan, job.sync.largest_chunk_bytes(), job.checkpoint.replicas);
  keeper_->begin(epoch, pieces_at(pieces, self),
                 [this](const SnapshotResult& result) { send_checkpoint_report(result); });
  std::string second;  // one for all chunks of a server
  std::optional<PieceId> own_state;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    const CheckpointPiece& piece = pieces[i];
    if (!piece.layer && (piece.holder == self || piece.second == self)) own_state = PieceId(i);
    if (piece.holder == self && !piece.giver && piece.second) {
      second = plan.server_addresses[piece.second->value()];
    }
  }
  const auto shared_plan = std::make_shared<const Plan>(plan);
  service_->assign(
      std::move(plan), self, job.optimizer, traffic,
      [this, epoch, self, assignment, shared_plan, second, own_state,
       every = job.checkpoint.every_iterations, slots = optimizer_state_slots(job.optimizer)] {
        loop_.assert_held();
        own_state_piece_ = own_state;
        replicas_.begin(second, [this](SnapshotId snapshot, const absl::Status& status) {
          send_checkpoint_report({.snapshot = snapshot, .status = status});
        });
        service_->with_shard(epoch, [every](Shard* shard) {
          if (shard != nullptr) shard->freeze_every(every);
        });
        transfer_.reset();
        if (!assignment.has_restore()) {
          client_->send(ready_message(epoch));
          return;
        }
        const absl::Status begun = restore(assignment.restore(), *shared_plan, self, slots);
        if (!begun.ok()) client_->send(failed_message(epoch, begun, /*restoring=*/true));
      });
  spdlog::info("job {}: server {} with {} parameters for {} workers, epoch {}", job.name,
               assignment.index(), parameters, workers, epoch.value());
  return absl::OkStatus();
}

/// Ready is sent when everything is loaded.
absl::Status ServerNode::restore(const v1::RestoreSource& message, const Plan& plan,
                                 ServerIndex self, int state_slots) {
  POSEIDON_ASSIGN_OR_RETURN(const RestoreSource source, restore_from_message(message));
  std::vector<StoreRequest> requests;
  const Epoch epoch = plan.epoch;
  const PieceIndex pieces(source.pieces);
  std::uint32_t next = 0;
  for (const PlanChunk& chunk : plan.chunks) {
    const ChunkId id(next++);
    if (chunk.server != self) continue;
    const auto take = [this, epoch, id](std::uint32_t slot, std::int64_t offset,
                                        const Bytes& values) {
      Shard* shard = service_->shard_of(epoch);
      if (shard == nullptr) return absl::CancelledError("the job was stopped");
      return shard->restore(id, slot, offset, values);
    };
    POSEIDON_RETURN_IF_ERROR(append_range_requests(source, pieces, chunk.layer, chunk.offset,
                                                   chunk.elements, state_slots, take, requests));
  }
  transfer_ = std::make_unique<StoreTransfer>(stores_);
  transfer_->start(std::move(requests), [this, epoch, source](const absl::Status& status) {
    loop_.assert_held();
    Shard* shard = service_->shard_of(epoch);
    if (shard == nullptr) return;
    absl::Status end = status;
    if (end.ok()) {
      if (const Objection objection = shard->restored(source.iteration())) {
        end = absl::FailedPreconditionError(objection.message);
      }
    }
    if (transfer_->asked_second() > 0) {
      spdlog::warn("epoch {}: {} parts of checkpoint {} came from the second server; the first: {}",
                   epoch.value(), transfer_->asked_second(), snapshot_name(source.snapshot),
                   transfer_->first_reason());
    }
    if (end.ok()) {
      spdlog::info("epoch {}: continues from checkpoint {}", epoch.value(),
                   snapshot_name(source.snapshot));
      client_->send(ready_message(epoch));
    } else {
      const absl::Status failure = reworded(
          end, absl::StrCat("checkpoint ", snapshot_name(source.snapshot), ": ", end.message()));
      client_->send(failed_message(epoch, failure, /*restoring=*/true));
    }
  });
  return absl::OkStatus();
}

void ServerNode::on_halt(const v1::Halt& halt) {
  const Epoch epoch(halt.epoch());
  service_->halt(epoch, [this, epoch](const Shard* shard) {
    if (shard == nullptr) return;  // the epoch is over, and the coordinator knows
    HeldRange held = shard->held();
    if (const auto states = keeper_->held_states()) {
      held.oldest = std::max(held.oldest, states->oldest);
      held.newest = std::min(held.newest, states->newest);
    }
    client_->send(halted_message(epoch, held.oldest, held.newest));
  });
}

void ServerNode::on_save_checkpoint(const v1::SaveCheckpoint& save) {
  const Epoch epoch(save.epoch());
  const auto iteration = static_cast<Iteration>(save.iteration());
  service_->with_shard(epoch, [this, epoch, iteration, held = save.held()](Shard* shard) {
    if (shard == nullptr) return;  // the epoch is over, and the coordinator knows
    loop_.assert_held();
    const SnapshotId snapshot = snapshot_id(epoch, iteration);
    const absl::Status frozen = held ? save_held(*shard, snapshot) : shard->freeze_at(iteration);
    if (frozen.ok()) return;
    send_checkpoint_report({.snapshot = snapshot, .status = frozen},
                           /*too_late=*/absl::IsOutOfRange(frozen));
  });
}

/// Everything in memory here, including worker 0's own state, even when that worker is lost.
absl::Status ServerNode::save_held(Shard& shard, SnapshotId snapshot) {
  if (replicas_.has_failed(snapshot)) {
    return absl::AbortedError("the second copy of an earlier attempt at this iteration has failed");
  }
  keeper_->expect(snapshot);  // before others' pieces of it come
  replicas_.expect(snapshot);
  POSEIDON_RETURN_IF_ERROR(shard.freeze_held(snapshot_iteration(snapshot)));
  return own_state_piece_ ? keeper_->put_held_state(snapshot, *own_state_piece_) : absl::OkStatus();
}

void ServerNode::on_forget_checkpoint(const v1::ForgetCheckpoint& forget) {
  keeper_->forget(SnapshotId(forget.snapshot()));
}

void ServerNode::on_keep_checkpoints(const v1::KeepCheckpoints& keep) {
  WantedSnapshots wanted{
      .identity = keep.identity(), .snapshots = {}, .epoch = Epoch(keep.epoch())};
  for (const std::uint64_t snapshot : keep.snapshots()) wanted.snapshots.emplace(snapshot);
  keeper_->keep_only(std::move(wanted));
}

void ServerNode::on_stop(const v1::StopJob& stop) {
  // Its reason says whether the job has failed, was ended, or continues in another epoch.
  spdlog::info("epoch {} {}{}{}", stop.epoch(), stop.succeeded() ? "is done" : "is over",
               stop.reason().empty() ? "" : ": ", stop.reason());
  calibration_.end();
  drop(Epoch(stop.epoch()));
}

void ServerNode::on_away(const absl::Status& reason) {
  spdlog::warn("cannot reach the coordinator: {}", std::string(reason.message()));
  probe_->count(NodeCount::kRetriesCoordinator);
  calibration_.end();
}

void ServerNode::on_lost(const absl::Status& reason) {
  spdlog::warn("{}", std::string(reason.message()));
  calibration_.end();
  Epoch epoch;
  {
    const MutexLock lock(mutex_);
    epoch = epoch_;
  }
  drop(epoch);
}

void ServerNode::drop(Epoch epoch) {
  {
    const MutexLock lock(mutex_);
    if (epoch_ != epoch) return;
    traffic_.reset();
  }
  set_log_job("", 0);
  if (metrics_ != nullptr) metrics_->show({});
  service_->drop(epoch);
  keeper_->end(epoch);
  stores_->post([this] {
    loop_.assert_held();
    replicas_.end();
  });
}

void ServerNode::fill_join(v1::Join& join) {
  join.set_newest_epoch(keeper_->newest_epoch().value());
}

void ServerNode::fill_heartbeat(v1::Heartbeat& heartbeat) {
  std::shared_ptr<TrafficProbe> traffic;
  Epoch epoch;
  {
    const MutexLock lock(mutex_);
    traffic = traffic_;
    epoch = epoch_;
  }
  if (traffic != nullptr) {
    // The loop answers after this heartbeat, in time for the next one.
    service_->with_shard(epoch, [traffic](const Shard* shard) {
      traffic->awaited().set(shard == nullptr ? std::vector<AwaitedData>() : shard->awaited());
    });
  }
  fill_heartbeat_totals(traffic.get(), nullptr, *refusals_, heartbeat);
  fill_load(*probe_, *heartbeat.mutable_load());
  fill_counters(*probe_, traffic.get(), counters_, *heartbeat.mutable_counters());
}

}  // namespace poseidon
