#include "coordinator/cluster/status_report.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "coordinator/members/admission.h"
#include "coordinator/records/durable_job.h"

namespace poseidon {

namespace {

/// A full disk, mostly, of a server or of the coordinator; "" when the newest attempt went well.
std::string unsaved_text(const JobView& view) {
  const std::optional<CheckpointOutcome>& last = view.checkpoints.last();
  if (!last || last->committed) return "";
  const CheckpointManifest* const newest = view.checkpoints.newest();
  return absl::StrCat("checkpoint ", snapshot_name(last->snapshot), " failed: ", last->reason, "; ",
                      newest == nullptr
                          ? "there is none yet"
                          : absl::StrCat("the newest is ", snapshot_name(newest->snapshot)));
}

}  // namespace

void StatusReport::fill_job(v1::GetStatusResponse& out) const {
  const JobDescription& description = host_.job()->description();
  const JobView view = host_.job()->view();
  const JobProgress progress = host_.job()->progress(context_.now());
  out.set_job(description.name);
  out.set_job_id(description.id);
  out.set_state(job_state_name(host_.state()));
  out.set_message(progress.message);
  if (!output_.lines_lost().empty()) {
    out.set_message(absl::StrCat(
        progress.message, progress.message.empty() ? "the model is stored, but " : "; ",
        "the last lines of the run directory could not be written: ", output_.lines_lost()));
  }
  if (!output_.model_missing().empty()) {
    out.set_message(absl::StrCat(out.message(), "; ", output_.model_missing()));
  }
  if (host_.job()->state() == JobState::kRunning) {
    if (const std::string text = uploads_.retry_text(); !text.empty()) out.set_message(text);
    if (!output_.refused_text().empty()) out.set_message(output_.refused_text());
    if (out.message().empty()) out.set_message(unsaved_text(view));
    // Behind what else there is to say: it lasts until a person starts a server.
    if (const std::string copies = view.saving.copies().text(); !copies.empty()) {
      out.set_message(absl::StrCat(out.message(), out.message().empty() ? "" : "; ", copies));
    }
  }
  if (membership_.isolated_since() && !host_.job()->ended()) {
    out.set_message("no message from any node at the moment: training may be further than shown");
  }
  out.set_iteration(static_cast<std::uint64_t>(progress.completed));
  out.set_iterations(static_cast<std::uint64_t>(host_.job()->iterations().value_or(0)));
  out.set_epoch(host_.job()->epoch().value());
  out.set_unsaved(view.ending.ended_unsaved());
  if (progress.loss) out.set_loss(*progress.loss);
  // A rate is of the last seconds: what has ended has none.
  if (!host_.job()->ended()) out.set_images_per_s(progress.images_per_s);
  if (progress.test) {
    out.set_test_loss(progress.test->loss);
    out.set_test_accuracy(progress.test->accuracy);
    out.set_tested_iteration(static_cast<std::uint64_t>(progress.test->iteration));
  }
  out.set_training_seconds(progress.training_seconds);
  out.set_iterated_seconds(progress.iterated_seconds);
  out.set_training_from(static_cast<std::uint64_t>(progress.training_from));
  out.set_run_directory(output_.files().path().string());
  out.set_plan_basis(view.run.plan_basis);
  out.set_recommendation(view.run.recommendation);
  if (view.run.plan && view.run.plan->prediction) {
    out.set_predicted_iteration_seconds(view.run.plan->prediction->iteration_s);
  }
  if (progress.images_per_s > 0.0) {
    out.set_measured_iteration_seconds(static_cast<double>(view.roster.workers.size()) *
                                       static_cast<double>(view.run.elastic.batch_size) /
                                       progress.images_per_s);
  }
}

void StatusReport::fill_nodes(v1::GetStatusResponse& out,
                              const std::set<NodeId>& silent_nodes) const {
  const auto fill = [&](const NodeInfo& node, int rank, const std::string& state) {
    v1::NodeStatus* status = node.role == NodeRole::kWorker ? out.add_workers() : out.add_servers();
    status->set_rank(rank);
    status->set_address(node.address);
    status->set_device(node.device);
    status->set_state(state);
    status->set_metrics_address(node.metrics_address);
    status->set_node_id(node.id.value());
    status->set_note(probes_.note(node.id));
    if (status->note().empty() && rank < 0) status->set_note(newcomer_note(node));
    WorkerRates rates = watch_.worker_rates(node.id, context_.now());
    if (host_.job() && host_.job()->ended()) {
      rates.shares.reset();
      rates.passes_per_s.reset();
    }
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    const auto shares = rates.shares.value_or(
        WorkerRates::Shares{.compute = kUnknown, .stall = kUnknown, .data = kUnknown});
    status->set_compute_share(shares.compute);
    status->set_stall_share(shares.stall);
    status->set_data_stall_share(shares.data);
    status->set_corrupt_samples(rates.corrupt_samples);
    status->set_images_per_s(
        rates.passes_per_s && host_.job()
            ? *rates.passes_per_s * static_cast<double>(host_.job()->view().run.elastic.batch_size)
            : kUnknown);
    // A participant is as its job's record has it, which does not know the machine.
    if (const NodeInfo* member = membership_.find(node.id)) status->set_machine(member->machine);
    if (const v1::CountersStatus* counters = watch_.counters(node.id)) {
      *status->mutable_counters() = *counters;
    }
    if (const std::optional<LoadRates> load = watch_.load(node.id)) {
      v1::LoadStatus& told = *status->mutable_load();
      told.set_machine(load->machine);
      told.set_cores(load->cores);
      told.set_cores_used(load->cores_used);
      told.set_cores_wanted(load->cores_wanted);
      told.set_disk_share(load->disk_share);
      told.set_disk_bytes_per_s(load->disk_bytes_per_s);
      told.set_disk_waiting(load->disk_waiting);
    }
  };
  std::vector<NodeId> listed;
  if (host_.job()) {
    for (const auto* group : host_.job()->view().roster.groups()) {
      for (const Participant& p : *group) {
        const bool here = membership_.find(p.node.id) != nullptr;
        if (!here && host_.job()->state() == JobState::kDone) continue;
        std::string state = participant_state_name(p.state);
        if (!here) state = "lost";
        const bool silent = !streams_.has_stream(p.node.id) || silent_nodes.contains(p.node.id);
        if (here && silent) state = "away";
        if (here && host_.job()->ended()) state = "idle";
        if (here && !silent) state = leaving_state(p.node.id).value_or(state);
        fill(p.node, static_cast<int>(p.index), state);
        listed.push_back(p.node.id);
      }
    }
  }
  for (const NodeInfo& node : membership_.nodes()) {
    if (std::find(listed.begin(), listed.end(), node.id) == listed.end()) {
      fill(node, -1, leaving_state(node.id).value_or("idle"));
    }
  }
}

/// Of a member that is to go; nothing of others.
std::optional<std::string> StatusReport::leaving_state(NodeId id) const {
  const NodeInfo* const member = membership_.find(id);
  if (member == nullptr || !member->is_leaving) return std::nullopt;
  return host_.job() && needs_node(*host_.job(), id) ? "draining" : "drained";
}

/// Why a worker without a place in the job waits, for people.
std::string StatusReport::newcomer_note(const NodeInfo& node) const {
  if (!host_.job() || host_.job()->ended()) return "";
  const JobView view = host_.job()->view();
  if (node.role != NodeRole::kWorker || !view.staffing.is_idle(node, {.now = context_.now()})) {
    return "";
  }
  return view.change.newcomer_note(context_.now());
}

void StatusReport::fill_layers(v1::GetStatusResponse& out) const {
  const Plan& plan = *host_.job()->view().run.plan;
  std::vector<std::map<std::uint32_t, std::uint32_t>> chunks(plan.layers.size());
  for (const PlanChunk& chunk : plan.chunks) {
    ++chunks[chunk.layer.value()][chunk.server.value()];
  }
  std::uint32_t index = 0;
  for (const PlanLayer& layer : plan.layers) {
    LayerRates rates = watch_.layer_rates(LayerIndex(index), context_.now());
    if (host_.job()->ended()) {
      rates.sent_bytes_per_s = rates.received_bytes_per_s = rates.stall_share = 0.0;
    }
    v1::LayerStatus* status = out.add_layers();
    status->set_name(layer.name);
    status->set_scheme(std::string(scheme_name(layer.scheme)));
    status->set_parameters(layer.parameters);
    status->set_sent_bytes_per_s(rates.sent_bytes_per_s);
    status->set_received_bytes_per_s(rates.received_bytes_per_s);
    status->set_stall_share(rates.stall_share);
    status->set_reason(layer.reason);
    status->mutable_chunks()->insert(chunks[index].begin(), chunks[index].end());
    const auto fill = [](v1::LayerSeconds* seconds, double forward, double backward, double sync) {
      seconds->set_forward(forward);
      seconds->set_backward(backward);
      seconds->set_sync(sync);
    };
    if (layer.prediction && plan.calibration) {
      const LayerTimes& times = plan.calibration->layers[index];
      fill(status->mutable_predicted(), times.forward_s, times.backward_s,
           layer.prediction->sync_s);
    }
    if (rates.measured) {
      fill(status->mutable_measured(), rates.measured->forward_s, rates.measured->backward_s,
           rates.measured->sync_s);
    }
    ++index;
  }
}

void StatusReport::fill_refused(v1::GetStatusResponse& out) const {
  for (const auto& [reason, count] : watch_.refusals().sum()) {
    v1::RefusedCount* refused = out.add_refused();
    refused->set_reason(reason);
    refused->set_count(count);
  }
}

void StatusReport::fill_own_counters(v1::GetStatusResponse& out) const {
  v1::CoordinatorCounters& own = *out.mutable_counters();
  own.set_heartbeat_ms(static_cast<std::uint32_t>(
      std::chrono::duration_cast<Milliseconds>(context_.options.membership.heartbeat).count()));
  for (const auto& [reason, count] : watch_.refusals().own()) {
    v1::RefusedCount* refused = own.add_refused_messages();
    refused->set_reason(reason);
    refused->set_count(count);
  }
  own.set_checkpoints_failed(watch_.counts().jobs.checkpoints_failed);
  if (!host_.job()) return;
  const JobRun& job = *host_.job();
  own.set_checkpoints_failed(own.checkpoints_failed() + job.counts().checkpoints_failed);
  own.set_checkpoint_every(static_cast<std::uint64_t>(job.description().checkpoints.every));
  if (const CheckpointManifest* newest = job.view().checkpoints.newest_usable()) {
    own.set_checkpoint_iteration(static_cast<std::uint64_t>(newest->iteration()));
    own.set_checkpoint_bytes(static_cast<std::uint64_t>(newest->bytes));
  }
}

CoordinatorFigures StatusReport::figures(const std::set<NodeId>& silent_nodes) const {
  CoordinatorFigures figures;
  v1::GetStatusResponse nodes;
  fill_nodes(nodes, silent_nodes);
  const auto add = [&](const auto& statuses, NodeRole role) {
    for (const v1::NodeStatus& node : statuses) {
      // A job that is over misses no nodes.
      if (node.state() == "lost" && (!host_.job() || host_.job()->ended())) continue;
      figures.nodes.push_back({.role = role_name(role),
                               .rank = node.rank() < 0 ? "" : absl::StrCat(node.rank()),
                               .address = node.address(),
                               .state = node.state()});
    }
  };
  add(nodes.workers(), NodeRole::kWorker);
  add(nodes.servers(), NodeRole::kServer);
  figures.is_cut_off = membership_.isolated_since().has_value();
  figures.counts = watch_.counts();
  figures.refusals = watch_.refusals().own();
  if (!host_.job()) return figures;
  figures.counts.jobs += host_.job()->counts();
  const JobView view = host_.job()->view();
  JobFigures& job = figures.job.emplace();
  const CheckpointCommit& checkpoints = view.checkpoints;
  job.id = host_.job()->description().id;
  job.state = job_state_name(host_.state());
  job.iterations = host_.job()->iterations().value_or(0);
  job.progress = host_.job()->progress(context_.now());
  if (host_.job()->ended()) job.progress.images_per_s = 0.0;  // its outcome is in its status
  job.epoch = host_.job()->epoch();
  job.workers =
      static_cast<std::size_t>(std::ranges::count_if(view.roster.workers, [](const Participant& p) {
        return p.state != ParticipantState::kLost;
      }));
  // An operator who restores it may ask for fewer than it ever had.
  const std::uint32_t asked = host_.job()->description().workers;
  job.begun_with =
      asked > 0 ? std::min(asked, view.staffing.begun_with()) : view.staffing.begun_with();
  job.checkpoint_every = host_.job()->description().checkpoints.every;
  job.checkpoints_kept = checkpoints.committed().size();
  if (!host_.job()->ended()) job.copies_missing = view.saving.copies().missing();
  if (view.run.plan && view.run.plan->prediction) {
    job.predicted_iteration_s = view.run.plan->prediction->iteration_s;
  }
  if (const CheckpointManifest* newest = checkpoints.newest_usable()) {
    job.newest = NewestCheckpoint{.iteration = newest->iteration(),
                                  .bytes = newest->bytes,
                                  .time_unix_s = newest->time_unix_s,
                                  .seconds = checkpoints.totals().slowest_seconds};
  }
  return figures;
}

v1::GetStatusResponse StatusReport::now(const v1::GetStatusResponse& last_job,
                                        const std::set<NodeId>& silent_nodes) const {
  v1::GetStatusResponse out = host_.job() ? status_without_job() : last_job;
  if (host_.job()) fill_job(out);
  if (host_.job() && host_.job()->ended() && !output_.is_closed()) {
    // Clients that wait for the end read the files next, so the files must be complete by then.
    const JobState before = host_.job()->view().ending.ended_from();
    const auto& left_at = host_.job()->view().ending.left_at();
    out.set_state(job_state_name(before));
    if (left_at) {
      out.set_message(absl::StrCat("its model as of checkpoint ", snapshot_name(left_at->snapshot),
                                   " is being written"));
    } else {
      // Behind that of a job that waits, people are told to start nodes.
      out.set_message(before == JobState::kWaiting ? "" : "the last files are being written");
    }
  }
  fill_nodes(out, silent_nodes);
  if (host_.job() && host_.job()->view().run.plan) fill_layers(out);
  fill_refused(out);
  fill_own_counters(out);
  out.set_metrics_address(targets_.own_address());
  return out;
}

/// Of an ended job: the part that the next process still shows.
v1::GetStatusResponse StatusReport::outcome() const {
  v1::GetStatusResponse out = status_without_job();
  fill_job(out);
  return out;
}

}  // namespace poseidon
