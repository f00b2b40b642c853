#pragma once

// Which bytes of a layer cross which network card. Pure.
// Before: addresses say who shares a machine, a calibration says how fast its NIC is. After:
// iteration_model.h plays an iteration over the links, placement.h gives chunks by the shares.
//
// A machine has one NIC that sends and receives at once. What workers and servers of one machine
// give each other goes through shared memory and never touches it.

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/plan/calibration.h"

namespace poseidon {

/// What a card carries of a job, by what it carries of one stream alone: many streams start, wait
/// for each other and end. Where links are what all wait for, iterations took 1.01 to 1.03 times as
/// long as without this factor (bench/RESULTS.md, `modern`); and a plan that counts on the last
/// percent of a link waits for it.
inline constexpr double kSharedLinkEfficiency = 0.98;

struct Machine {
  NicSpeed nic;                      ///< kSharedLinkEfficiency included
  std::size_t workers = 0;           ///< how many are on it
  std::size_t contributors = 0;      ///< of those, how many give gradients to servers themselves
  std::size_t led_elsewhere = 0;     ///< and how many to a relay on another machine
  std::size_t guests = 0;            ///< workers elsewhere whose relay is here
  std::vector<std::size_t> servers;  ///< ServerIndex of those on it
};

struct LinkModel {
  std::vector<Machine> machines;
  std::size_t workers = 0;
  std::size_t contributors = 0;
  std::size_t largest_group = 1;  ///< workers whose gradients one relay sums
  std::size_t servers = 0;
  double server_sum_bytes_per_s = kDefaultServerSumBytesPerS;
  double latency_s = kDefaultLatencyS;
};

/// Workers and servers of one machine share it. A machine's NIC is the fastest that one of its
/// nodes saw (each was measured alone), times kSharedLinkEfficiency. `calibration` has a NicSpeed
/// for every node. `leaders` as in Plan: what workers give a leader of their machine stays there
/// too.
LinkModel make_link_model(const std::vector<std::string>& worker_addresses,
                          const std::vector<std::string>& server_addresses,
                          const std::vector<WorkerRank>& leaders, const Calibration& calibration);

/// Seconds that one direction of one NIC is busy per byte.
struct LinkLoad {
  double push_s_per_byte = 0.0;  ///< per byte of a PS layer's parameters: gradients to the servers
  double pull_s_per_byte = 0.0;  ///< likewise: parameters back to the workers
  double factor_s_per_byte = 0.0;  ///< per byte of one worker's factors
};

/// The links that can hold an iteration up, for servers that own these shares of every layer (by
/// ServerIndex, sum 1). A link that has no more of anything to carry than another one never
/// finishes later, so it is left out: a symmetric cluster of any size has one link. At most
/// kMaxLinks, the most loaded ones.
inline constexpr std::size_t kMaxLinks = 8;
std::vector<LinkLoad> link_loads(const LinkModel& cluster, const std::vector<double>& shares);

/// The share of every layer that each server should own so that the busiest NIC is least busy, when
/// `ps_bytes` of parameters go by PS and each worker has `factor_bytes` of factors to give to each
/// other one. A machine that only serves has its whole NIC to give; one that works too has what its
/// worker leaves. By ServerIndex, sum 1; equal where nothing tells the servers apart.
std::vector<double> free_bandwidth_shares(const LinkModel& cluster, double ps_bytes,
                                          double factor_bytes);

}  // namespace poseidon
