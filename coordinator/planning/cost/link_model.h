#pragma once

// Models which bytes of a layer cross which NIC. Addresses show which nodes share a machine; a
// calibration has the speed of its NIC. Pure.
//
// Called by: iteration_model.h, which simulates an iteration over the links; time_rule.h, whose
// shares placement.h uses. Calls: nothing.
//
// A machine has one NIC that sends and receives at once. Traffic between nodes of one machine goes
// through shared memory and does not use it.

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/plan/calibration.h"

namespace poseidon {

/// The throughput of a NIC for a job, relative to that of a single stream: many streams start, wait
/// for each other and end. Where links are the bottleneck, iterations took 1.01 to 1.03 times as
/// long as predicted without this factor (bench/RESULTS.md, `modern`).
inline constexpr double kSharedLinkEfficiency = 0.98;

struct Machine {
  NicSpeed nic;                      ///< kSharedLinkEfficiency included
  std::size_t workers = 0;           ///< how many are on it
  std::size_t contributors = 0;      ///< of those, how many send gradients to servers themselves
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
/// for every node. `leaders` as in Plan: traffic to a leader on the same machine stays there, too.
LinkModel make_link_model(const std::vector<std::string>& worker_addresses,
                          const std::vector<std::string>& server_addresses,
                          const std::vector<WorkerRank>& leaders, const Calibration& calibration);

/// Seconds that one direction of one NIC is busy per byte.
struct LinkLoad {
  double push_s_per_byte = 0.0;  ///< per byte of a PS layer's parameters: gradients to the servers
  double pull_s_per_byte = 0.0;  ///< likewise: parameters back to the workers
  double factor_s_per_byte = 0.0;  ///< per byte of one worker's factors
};

/// The links that can delay an iteration, for servers that own these shares of every layer (by
/// ServerIndex, sum 1). A link that carries no more than another one in every respect never
/// finishes later, so it is omitted: a symmetric cluster of any size has one link. At most
/// kMaxLinks, the most loaded ones.
inline constexpr std::size_t kMaxLinks = 8;
std::vector<LinkLoad> link_loads(const LinkModel& cluster, const std::vector<double>& shares);

/// The share of every layer that each server should own so that the busiest NIC is least busy, when
/// `ps_bytes` of parameters go by PS and each worker has `factor_bytes` of factors to give to each
/// other one. A machine with only servers offers its whole NIC; one with workers offers the rest.
/// By ServerIndex, sum 1; equal for equal servers.
std::vector<double> free_bandwidth_shares(const LinkModel& cluster, double ps_bytes,
                                          double factor_bytes);

}  // namespace poseidon
