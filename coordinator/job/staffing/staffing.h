#pragma once

// Chooses the nodes of a job: the first ones, those for vacant places, and more workers. Pure:
// members and vacancies in, choice and reason out.
//
// Called by: waiting.h chooses the first nodes, recovery.h fills vacant places, planned_change.h
// asks for more workers and servers, exclusion.h asks who is to blame and who can be spared.
// Calls: suspects.h says who may have a place, roster.h has the places.
//
// Invariants
//  1. A member has at most one place.
//  2. A vacant or additional place is given only to a member that Suspects allows.
//  3. No place is given to a member that is leaving.
//  4. A worker that must have a rank (NodeInfo::rank) begins with that one and is given no other
//     vacant place. Its rank changes only where the job goes on with fewer workers.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint.h"
#include "common/plan/plan.h"
#include "coordinator/job/checkpoints/checkpoint_commit.h"
#include "coordinator/job/staffing/participant.h"
#include "coordinator/job/staffing/roster.h"
#include "coordinator/job/staffing/suspects.h"
#include "coordinator/members/membership.h"
#include "coordinator/members/mishaps.h"

namespace poseidon {

/// How many nodes a job wants.
struct StaffingNeeds {
  std::uint32_t workers = 0;  ///< exactly so many; 0: min_workers up to max_workers
  std::uint32_t servers = 0;  ///< exactly so many; 0: all there are, at least one
  std::int64_t min_workers = 1;
  std::int64_t max_workers = 64;
  std::int64_t replicas = 1;  ///< a job that begins needs as many servers
  /// Pure; whether a run that began with so many workers may have so many. Null: the number of
  /// workers never grows.
  std::function<bool(std::uint32_t begun_with, std::uint32_t workers)> allows;
};

/// How one search for nodes looks at members.
struct StaffingSearch {
  Nanoseconds now{0};
  /// The job still waits for members that would fit better: a lost server's place is kept for the
  /// server that has its data.
  bool in_time = false;
  /// Without the node the job could not go on: rather one with mishaps than none.
  bool needed = false;
  /// The plan in force, whose groups a newcomer may belong to; null before the first one.
  const Plan* plan = nullptr;
  /// The rank or index that is vacant: a worker that must have another rank does not fit. Nothing:
  /// any place.
  std::optional<std::uint32_t> place = std::nullopt;
};

/// One job's. One thread only. Pointers and references are valid until the next call that is not
/// const.
class Staffing {
 public:
  Staffing(StaffingNeeds needs, MishapOptions mishaps, const CheckpointCommit& checkpoints)
      : needs_(std::move(needs)), suspects_(mishaps, checkpoints) {}

  // ---- who is here ----
  /// The cluster's members that may serve the job, in order of joining.
  const std::vector<NodeInfo>& members() const { return members_; }
  void set_members(const std::vector<NodeInfo>& members) { members_ = members; }
  /// The member has left the cluster; its place, if it had one, stays.
  void on_gone(NodeId node);
  /// Null: nobody has this address, or two nodes behind different hosts have it.
  const NodeInfo* member_at(const std::string& address) const;
  Suspects& suspects() { return suspects_; }
  const Suspects& suspects() const { return suspects_; }

  /// Who has which place.
  Roster& roster() { return roster_; }
  const Roster& roster() const { return roster_; }

  // ---- the first choice ----
  /// Enough members are here for the job to begin.
  bool has_enough() const;
  /// "1 of 2 workers and 0 of 1 servers are here; start the others ..."
  std::string members_text() const;
  /// Takes the first members that fit, as soon as there are enough. `like`: a checkpoint whose
  /// ranks on machines are kept where possible; may be null.
  bool choose_nodes(const CheckpointManifest* like);
  /// Workers of the run's first epoch; 0: none has begun.
  std::uint32_t begun_with() const { return begun_with_; }
  void set_begun_with(std::uint32_t workers) { begun_with_ = workers; }

  // ---- vacant places ----
  /// A member without a place that may have one, the first that fits. `store`: whose data it must
  /// have; null: anybody's. Returns null when there is none.
  const NodeInfo* next_idle(NodeRole role, const std::string* store,
                            const StaffingSearch& search) const;
  bool is_idle(const NodeInfo& node, const StaffingSearch& search) const;
  std::size_t idle_workers(Nanoseconds now) const;
  /// Puts members without a place into the places of those that are lost: first workers beside
  /// their group. Returns who is still missing, for people; "" when no place is vacant.
  std::string fill_vacancies(const StaffingSearch& search);
  /// Whether the job may go on with those that are left, without the vacant places.
  bool may_close_vacancies() const;
  /// Removes the vacant places, and workers until their number is allowed. Precondition:
  /// may_close_vacancies().
  void close_vacancies();
  /// A worker on its CPU among workers on GPUs: all others would wait for it. (One of a mixed job's
  /// own CPUs may be replaced by another.)
  bool would_slow_all(const NodeInfo& node) const;

  // ---- more nodes ----
  /// How many workers there could be now, with those that are idle; no more than the job wants.
  std::size_t most_workers(Nanoseconds now) const;
  /// No more workers are wanted.
  bool is_full() const;
  bool allows_workers(std::size_t count) const;
  /// Gives idle workers places of their own, as many as the job takes.
  void add_workers(Nanoseconds now);
  /// Idle servers that the job would use: it has fewer than it asks for, than it once trained with
  /// in this coordinator's life, or than the copies of its checkpoints need.
  std::size_t servers_to_add(Nanoseconds now) const;
  /// Gives them places of their own.
  void add_servers(Nanoseconds now);
  /// The epoch trains with these nodes.
  void on_trained() {
    trained_workers_ = roster_.workers.size();
    most_servers_ = std::max(most_servers_, roster_.servers.size());
  }
  /// Workers of the last epoch that trained; 0: none has.
  std::size_t trained_workers() const { return trained_workers_; }
  /// More workers than trained_workers() do not fit: removes the later places permanently.
  void shrink_to_trained();

  // ---- what nodes have shown, and which ones can be spared ----
  /// Those that completed a new iteration have shown what they can do.
  void on_new_iteration();
  /// Somebody is there for its place, or the job may go on with fewer. Never a server of which the
  /// next epoch would have to read something. `source`: the checkpoint that it would read; may be
  /// null.
  bool can_do_without(const Participant& participant, const CheckpointManifest* source,
                      Nanoseconds now) const;

 private:
  std::size_t least_servers() const;
  std::vector<Participant> first_workers() const;
  std::size_t wanted_workers() const;
  std::size_t fitting_workers(std::size_t left) const;
  bool may_try(const NodeInfo& node, const StaffingSearch& search) const;
  const NodeInfo* idle_beside_group(const Participant& vacant, const StaffingSearch& search) const;
  const NodeInfo* idle_beside(const std::string& address, const StaffingSearch& search) const;
  const NodeInfo* itself_again(const Participant& vacant, const StaffingSearch& search) const;

  const StaffingNeeds needs_;
  std::vector<NodeInfo> members_;
  Roster roster_;
  std::uint32_t begun_with_ = 0;
  std::size_t trained_workers_ = 0;
  std::size_t most_servers_ = 0;  ///< that an epoch has trained with
  std::size_t most_that_fit_ = std::numeric_limits<std::size_t>::max();  ///< as far as is known
  Suspects suspects_;
};

}  // namespace poseidon
