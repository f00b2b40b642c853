#include "coordinator/job/staffing/staffing.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/address.h"
#include "coordinator/job/staffing/leavers.h"
#include "coordinator/planning/local_groups.h"

namespace poseidon {
namespace {

/// What a worker without a GPU says that it computes on (Join.device).
constexpr char kCpuDevice[] = "cpu";

std::size_t count_role(const std::vector<NodeInfo>& members, NodeRole role) {
  return static_cast<std::size_t>(std::ranges::count_if(
      members, [role](const NodeInfo& node) { return node.role == role && !node.is_leaving; }));
}

std::size_t count_left(const std::vector<Participant>& group) {
  return static_cast<std::size_t>(std::ranges::count_if(group, std::not_fn(is_lost)));
}

/// To begin with.
std::size_t least_workers(const StaffingNeeds& needs) {
  return needs.workers > 0 ? needs.workers : static_cast<std::size_t>(needs.min_workers);
}

/// To go on with.
std::size_t fewest_workers(const StaffingNeeds& needs) {
  return static_cast<std::size_t>(std::max<std::int64_t>(needs.min_workers, 1));
}

/// Puts each worker that must have a rank there, and the others in the other places in their order.
/// Precondition: no two must have the same rank, and none one beyond the places.
void put_at_ranks(std::vector<Participant>& workers) {
  std::vector<Participant> placed(workers.size());
  std::vector<bool> is_taken(workers.size(), false);
  for (const Participant& worker : workers) {
    if (!worker.node.rank) continue;
    placed[worker.node.rank->value()] = worker;
    is_taken[worker.node.rank->value()] = true;
  }
  std::size_t next = 0;
  for (const Participant& worker : workers) {
    if (worker.node.rank) continue;
    while (is_taken[next]) ++next;
    placed[next++] = worker;
  }
  workers = std::move(placed);
}

void put_in(const std::vector<std::size_t>& order, std::vector<Participant>& group) {
  std::vector<Participant> ordered;
  for (const std::size_t next : order) ordered.push_back(group[next]);
  group = std::move(ordered);
}

}  // namespace

// ---- who is here ----

void Staffing::on_gone(NodeId node) {
  std::erase_if(members_, [node](const NodeInfo& member) { return member.id == node; });
  suspects_.on_gone(node);
}

const NodeInfo* Staffing::member_at(const std::string& address) const {
  const NodeInfo* found = nullptr;
  for (const NodeInfo& node : members_) {
    if (address.empty() || node.address != address) continue;
    if (found != nullptr) return nullptr;
    found = &node;
  }
  return found;
}

// ---- the first choice ----

/// When a job begins anew, each copy of its checkpoints needs a server; later it goes on with
/// fewer.
std::size_t Staffing::least_servers() const {
  const std::size_t copies = begun_with_ == 0 ? static_cast<std::size_t>(needs_.replicas) : 1;
  return std::max<std::size_t>({needs_.servers, copies, 1});
}

/// Those that could begin. Of several that must have the same rank the last: a program that was
/// started again may join before its former process is given up.
std::vector<Participant> Staffing::first_workers() const {
  const auto most =
      static_cast<std::size_t>(needs_.workers > 0 ? needs_.workers : needs_.max_workers);
  std::map<std::uint32_t, const NodeInfo*> at_rank;
  std::size_t others = 0;
  for (const NodeInfo& node : members_) {
    if (node.is_leaving || node.role != NodeRole::kWorker) continue;
    if (!node.rank) {
      ++others;
    } else if (node.rank->value() < most) {
      at_rank[node.rank->value()] = &node;
    }
  }
  if (!at_rank.empty()) {
    others = std::min(others, most - at_rank.size());
    // A place behind one that is empty cannot be given yet.
    if (at_rank.rbegin()->first >= at_rank.size() + others) return {};
  }
  std::vector<Participant> workers;
  for (const NodeInfo& node : members_) {
    if (node.is_leaving || node.role != NodeRole::kWorker) continue;
    if (node.rank) {
      const auto found = at_rank.find(node.rank->value());
      if (found == at_rank.end() || found->second != &node) continue;
    } else if (others == 0) {
      continue;
    } else {
      --others;
    }
    workers.push_back({.node = node});
  }
  return workers;
}

bool Staffing::has_enough() const {
  return first_workers().size() >= least_workers(needs_) &&
         count_role(members_, NodeRole::kServer) >= least_servers();
}

std::string Staffing::members_text() const {
  return absl::StrFormat(
      "%d of %d workers and %d of %d servers are here",
      std::min(first_workers().size(), least_workers(needs_)), least_workers(needs_),
      std::min(count_role(members_, NodeRole::kServer), least_servers()), least_servers());
}

bool Staffing::choose_nodes(const CheckpointManifest* like) {
  const std::size_t max_servers = needs_.servers > 0 ? needs_.servers : SIZE_MAX;
  if (!has_enough()) return false;
  std::vector<Participant> workers = first_workers();
  std::vector<Participant>& servers = roster_.servers;
  for (const NodeInfo& node : members_) {
    if (node.is_leaving || node.role != NodeRole::kServer || servers.size() >= max_servers)
      continue;
    servers.push_back({.node = node, .index = static_cast<std::uint32_t>(servers.size())});
  }
  const std::size_t count =
      std::min(workers.size(),
               static_cast<std::size_t>(needs_.workers > 0 ? needs_.workers : needs_.max_workers));
  if (like != nullptr && like->workers == count && !like->plan.leaders.empty()) {
    put_in(rank_order_for(like->plan.leaders, machines_of(workers)), workers);
  } else {
    put_in(rank_order(machines_of(workers)), workers);
  }
  workers.resize(count);
  put_at_ranks(workers);
  for (std::uint32_t rank = 0; rank < workers.size(); ++rank) workers[rank].index = rank;
  roster_.workers = std::move(workers);
  return true;
}

// ---- vacant places ----

bool Staffing::may_try(const NodeInfo& node, const StaffingSearch& search) const {
  if (node.is_leaving) return false;
  if (search.place && node.rank && node.rank->value() != *search.place) return false;
  if (!search.needed && would_slow_all(node)) return false;
  return suspects_.may_try(node, search.needed, search.now);
}

bool Staffing::is_idle(const NodeInfo& node, const StaffingSearch& search) const {
  return !roster_.has_place(node.id) && may_try(node, search);
}

bool Staffing::would_slow_all(const NodeInfo& node) const {
  if (node.role != NodeRole::kWorker || node.device != kCpuDevice) return false;
  bool any_other = false;
  for (const Participant& worker : roster_.workers) {
    if (worker.node.id == node.id) continue;
    if (worker.node.device == kCpuDevice) return false;
    any_other |= !worker.node.device.empty();
  }
  return any_other;
}

const NodeInfo* Staffing::next_idle(NodeRole role, const std::string* store,
                                    const StaffingSearch& search) const {
  for (const NodeInfo& node : members_) {
    if (node.role != role || !is_idle(node, search)) continue;
    if (store == nullptr || node.store_identity == *store) return &node;
  }
  return nullptr;
}

/// A worker on one of its group's machines, or on its predecessor's. Null: there is none.
const NodeInfo* Staffing::idle_beside_group(const Participant& vacant,
                                            const StaffingSearch& search) const {
  const Plan* const plan = search.plan;
  if (plan != nullptr && vacant.index < plan->workers()) {
    const WorkerRank leader = leader_of(*plan, WorkerRank(vacant.index));
    for (const WorkerRank rank : group_of(*plan, leader)) {
      if (rank.value() >= roster_.workers.size() || is_lost(roster_.workers[rank.value()])) {
        continue;
      }
      const std::string& address = roster_.workers[rank.value()].node.address;
      if (const NodeInfo* node = idle_beside(address, search)) return node;
    }
  }
  return idle_beside(vacant.node.address, search);
}

/// A worker on the same machine. Null: there is none.
const NodeInfo* Staffing::idle_beside(const std::string& address,
                                      const StaffingSearch& search) const {
  for (const NodeInfo& node : members_) {
    if (node.role == NodeRole::kWorker && same_machine(node.address, address) &&
        is_idle(node, search)) {
      return &node;
    }
  }
  return nullptr;
}

/// The node that was left out of this place and may try it again. Null: it is gone, or not yet.
const NodeInfo* Staffing::itself_again(const Participant& vacant,
                                       const StaffingSearch& search) const {
  for (const NodeInfo& node : members_) {
    if (node.id == vacant.node.id) return may_try(node, search) ? &node : nullptr;
  }
  return nullptr;
}

std::size_t Staffing::idle_workers(Nanoseconds now) const {
  return static_cast<std::size_t>(std::ranges::count_if(members_, [&](const NodeInfo& node) {
    return node.role == NodeRole::kWorker && is_idle(node, {.now = now});
  }));
}

std::string Staffing::fill_vacancies(const StaffingSearch& search) {
  const auto fill = [](Participant& p, const NodeInfo& node) {
    p.node = node;
    p.state = ParticipantState::kWaiting;
    p.is_new = true;
    p.is_untried = true;
    p.is_cut_off = false;
    p.kept_until = 0;
  };
  const auto search_for = [&search](const Participant& p) {
    StaffingSearch one = search;
    one.place = p.index;
    return one;
  };
  for (Participant& p : roster_.workers) {
    if (!is_lost(p)) continue;
    if (const NodeInfo* node = idle_beside_group(p, search_for(p))) fill(p, *node);
  }
  std::vector<std::string> vacant;
  for (auto* group : roster_.groups()) {
    for (Participant& p : *group) {
      if (!is_lost(p)) continue;
      const bool is_server = p.node.role == NodeRole::kServer;
      // A server that is here and only out of others' reach is not waited for.
      const bool waits_for_data = is_server && search.in_time && !p.is_cut_off;
      const std::string* store = waits_for_data ? &p.node.store_identity : nullptr;
      const NodeInfo* node = next_idle(p.node.role, store, search_for(p));
      if (node == nullptr) node = itself_again(p, search_for(p));
      if (node != nullptr) {
        fill(p, *node);
      } else {
        vacant.push_back(participant_text(p));
      }
    }
  }
  return absl::StrJoin(vacant, ", ");
}

/// The most workers, of so many, that are allowed together; 0: fewer than the job needs.
std::size_t Staffing::fitting_workers(std::size_t left) const {
  while (left >= fewest_workers(needs_) && !allows_workers(left)) --left;
  return left >= fewest_workers(needs_) ? left : 0;
}

bool Staffing::may_close_vacancies() const {
  return count_left(roster_.servers) > 0 && fitting_workers(count_left(roster_.workers)) > 0;
}

void Staffing::close_vacancies() {
  const std::size_t fitting = fitting_workers(count_left(roster_.workers));
  for (auto* group : roster_.groups()) {
    std::erase_if(*group, is_lost);
    // The others are idle until there are enough for the next allowed number.
    if (group == &roster_.workers) group->resize(fitting);
    for (std::uint32_t i = 0; i < group->size(); ++i) (*group)[i].index = i;
  }
}

// ---- more nodes ----

std::size_t Staffing::wanted_workers() const {
  const auto wanted =
      static_cast<std::size_t>(needs_.workers > 0 ? needs_.workers : needs_.max_workers);
  return std::min(wanted, most_that_fit_);
}

std::size_t Staffing::most_workers(Nanoseconds now) const {
  return std::min(roster_.workers.size() + idle_workers(now), wanted_workers());
}

bool Staffing::is_full() const {
  return !needs_.allows || roster_.workers.size() >= wanted_workers();
}

bool Staffing::allows_workers(std::size_t count) const {
  if (!needs_.allows || begun_with_ == 0) return true;
  return needs_.allows(begun_with_, static_cast<std::uint32_t>(count));
}

void Staffing::add_workers(Nanoseconds now) {
  if (!needs_.allows) return;
  std::vector<Participant>& workers = roster_.workers;
  std::size_t count = most_workers(now);
  while (count > workers.size() && !allows_workers(count)) --count;
  while (workers.size() < count) {
    workers.push_back({.node = *next_idle(NodeRole::kWorker, nullptr, {.now = now}),
                       .index = static_cast<std::uint32_t>(workers.size()),
                       .state = ParticipantState::kWaiting,
                       .is_new = true,
                       .is_untried = true});
  }
}

std::size_t Staffing::servers_to_add(Nanoseconds now) const {
  const std::size_t wanted = std::max<std::size_t>(
      {needs_.servers, static_cast<std::size_t>(needs_.replicas), most_servers_});
  if (roster_.servers.size() >= wanted) return 0;
  const auto idle =
      static_cast<std::size_t>(std::ranges::count_if(members_, [&](const NodeInfo& node) {
        return node.role == NodeRole::kServer && is_idle(node, {.now = now});
      }));
  return std::min(idle, wanted - roster_.servers.size());
}

void Staffing::add_servers(Nanoseconds now) {
  std::vector<Participant>& servers = roster_.servers;
  for (std::size_t count = servers_to_add(now); count > 0; --count) {
    servers.push_back({.node = *next_idle(NodeRole::kServer, nullptr, {.now = now}),
                       .index = static_cast<std::uint32_t>(servers.size()),
                       .state = ParticipantState::kWaiting,
                       .is_new = true,
                       .is_untried = true});
  }
}

void Staffing::shrink_to_trained() {
  most_that_fit_ = trained_workers_;
  roster_.workers.resize(trained_workers_);
}

// ---- what nodes have shown, and which ones can be spared ----

void Staffing::on_new_iteration() {
  suspects_.forget_unreachable();
  for (auto* group : roster_.groups()) {
    for (Participant& p : *group) {
      if (std::exchange(p.is_untried, false)) suspects_.on_proved(p.node);
    }
  }
}

bool Staffing::can_do_without(const Participant& participant, const CheckpointManifest* source,
                              Nanoseconds now) const {
  const bool is_worker = participant.node.role == NodeRole::kWorker;
  // A node that does not reach it now would not reach it then.
  const auto has_its_store = [&](const NodeInfo& node) {
    return node.store_identity == participant.node.store_identity;
  };
  if (!is_worker && source != nullptr && !is_reachable_without(members_, *source, has_its_store)) {
    return false;
  }
  const StaffingSearch search{.now = now, .place = participant.index};
  if (next_idle(participant.node.role, nullptr, search) != nullptr) return true;
  const auto& group = is_worker ? roster_.workers : roster_.servers;
  const auto left = static_cast<std::size_t>(std::ranges::count_if(
      group, [&](const auto& p) { return !is_lost(p) && p.node.id != participant.node.id; }));
  return is_worker ? fitting_workers(left) > 0 : left > 0;
}

}  // namespace poseidon
