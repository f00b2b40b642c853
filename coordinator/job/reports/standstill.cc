#include "coordinator/job/reports/standstill.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace poseidon {
namespace {

constexpr std::size_t kMostSentences = 3;

std::string workers_text(const std::vector<WorkerRank>& ranks, const Roster& roster) {
  std::vector<std::string> names;
  for (const WorkerRank rank : ranks) {
    if (rank.value() < roster.workers.size()) {
      names.push_back(participant_text(roster.workers[rank.value()]));
    }
  }
  return absl::StrJoin(names, ", ");
}

/// "chunk 3 of layer fc6 of iteration 12"
std::string what_text(const AwaitedData& data, const Plan& plan) {
  if (!data.server && data.ranks.empty()) {
    return absl::StrCat("layer ", plan.layers[data.layer.value()].name);
  }
  return absl::StrCat(data.chunk ? absl::StrCat("chunk ", data.chunk->value(), " of layer ")
                                 : "the factors of layer ",
                      plan.layers[data.layer.value()].name, " of iteration ", data.iteration);
}

}  // namespace

void Standstill::begin_epoch(Nanoseconds now) {
  awaited_.clear();
  changed_ = now;
  last_iteration_.reset();
}

void Standstill::on_awaited(NodeId from, std::vector<AwaitedData> awaited, Nanoseconds now) {
  std::vector<AwaitedData>& known = awaited_[from];
  if (known == awaited) return;
  known = std::move(awaited);
  changed_ = now;
}

void Standstill::on_iteration(Nanoseconds now) {
  if (last_iteration_) {
    recent_.push_back(now - *last_iteration_);
    if (recent_.size() > kRecent) recent_.pop_front();
  }
  last_iteration_ = now;
}

void Standstill::extend_deadlines(Nanoseconds duration, Nanoseconds now) {
  changed_ = std::min(changed_ + duration, now);
  last_iteration_.reset();  // that one took as long as the coordinator was away
}

Standstill::Look Standstill::look(const std::vector<NodeId>& workers, bool is_preparing,
                                  Nanoseconds quiet, Nanoseconds now) const {
  if (workers.empty()) return {};
  const bool all_wait = std::ranges::all_of(workers, [this](NodeId worker) {
    const auto found = awaited_.find(worker);
    return found != awaited_.end() && !found->second.empty();
  });
  Nanoseconds limit = options_.least;
  if (!is_preparing && !recent_.empty()) {
    limit = std::max(limit, options_.iterations * *std::ranges::max_element(recent_));
  }
  if (all_wait) {
    const Nanoseconds lasts = std::min(quiet, now - changed_);
    if (lasts <= limit) return {};
    return {lasts > 2 * limit ? Verdict::kRecover : Verdict::kAlarm, lasts};
  }
  // The first iteration may take minutes, and so may getting ready.
  if (is_preparing || recent_.empty() || quiet <= limit) return {};
  const bool recovers = quiet > 2 * std::max(limit, options_.least_computing);
  return {recovers ? Verdict::kRecover : Verdict::kAlarm, quiet};
}

std::string Standstill::text(const Plan& plan, const Roster& roster) const {
  const auto awaited_by = [this](const Participant& p) -> const AwaitedData* {
    const auto found = awaited_.find(p.node.id);
    return found == awaited_.end() || found->second.empty() ? nullptr : &found->second.front();
  };
  const auto from_server = [&](const AwaitedData& data) -> std::string {
    if (data.server->value() >= roster.servers.size()) return "";
    const Participant& server = roster.servers[data.server->value()];
    std::string text = participant_text(server);
    const auto found = awaited_.find(server.node.id);
    if (found == awaited_.end()) return text;
    for (const AwaitedData& lacks : found->second) {
      if (lacks.chunk != data.chunk || lacks.ranks.empty()) continue;
      absl::StrAppend(&text, ", which waits for ", workers_text(lacks.ranks, roster));
    }
    return text;
  };
  std::vector<std::string> sentences;
  std::vector<std::string> computing;
  for (const Participant& worker : roster.workers) {
    if (is_lost(worker) || worker.state == ParticipantState::kFinished) continue;
    const AwaitedData* const data = awaited_by(worker);
    if (data == nullptr) {
      computing.push_back(participant_text(worker));
    } else if (sentences.size() < kMostSentences && data->layer.value() < plan.layers.size()) {
      const std::string from =
          data->server ? from_server(*data) : workers_text(data->ranks, roster);
      sentences.push_back(absl::StrCat(participant_text(worker), " waits for ",
                                       what_text(*data, plan), from.empty() ? "" : " from ", from));
    }
  }
  if (!computing.empty()) {
    sentences.push_back(absl::StrCat(
        absl::StrJoin(computing, ", "),
        computing.size() == 1 ? " computes or reads samples" : " compute or read samples"));
  }
  return absl::StrJoin(sentences, "; ");
}

}  // namespace poseidon
