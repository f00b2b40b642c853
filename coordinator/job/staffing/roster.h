#pragma once

// The places of a job and who has them. Pure.
//
// Called by: staffing.h owns it and fills its places; all of coordinator/job reads it and changes
// the states of participants.
// Calls: nothing.
//
// Invariants
//  1. The place of a participant is its position: workers by rank, servers by index.
//  2. A lost participant keeps its place until Staffing gives the place to somebody else, or
//     removes it.

#include <array>
#include <vector>

#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "coordinator/job/staffing/participant.h"

namespace poseidon {

/// One job's. One thread only.
struct Roster {
  std::vector<Participant> workers;  ///< by rank
  std::vector<Participant> servers;  ///< by index

  /// Workers, then servers.
  std::array<std::vector<Participant>*, 2> groups() { return {&workers, &servers}; }
  std::array<const std::vector<Participant>*, 2> groups() const { return {&workers, &servers}; }
  /// Null: the node has no place.
  Participant* find(NodeId id);
  const Participant* find(NodeId id) const;
  bool has_place(NodeId id) const { return find(id) != nullptr; }  ///< also one that is lost
  /// It has a place in the epoch, and was not given up.
  bool has_part(NodeId id) const;
  /// No participant is lost.
  bool is_complete() const;
  void set_all(ParticipantState state);
  /// Nobody has a place any more.
  void clear();
  /// Others of its group still lack what comes to them through this participant's relay.
  bool group_needs(const Participant& participant, const Plan& plan) const;
  /// Which nodes had to take part in an iteration, so that the next one could begin: all workers,
  /// and the servers that have layers.
  std::vector<NodeId> needed_to_advance(const Plan& plan) const;
};

/// In their order.
std::vector<std::string> addresses_of(const std::vector<Participant>& participants);
/// What tells machines apart, in the form of addresses. Where addresses are translated two nodes
/// may announce the same address, and are seen under others.
std::vector<std::string> machines_of(const std::vector<Participant>& participants);

}  // namespace poseidon
