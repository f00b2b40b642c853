#pragma once

// A small job of two workers and two servers, for tests of its recovery.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/job_run.h"
#include "coordinator/planner.h"

namespace poseidon {

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}
inline constexpr Iteration kIterations = 12;

/// Servers have nodes below 100 and a store of their own, or another's.
inline NodeInfo node(std::uint64_t id, std::uint64_t store = 0) {
  NodeInfo info;
  info.id = NodeId(id);
  info.role = id < 100 ? NodeRole::kServer : NodeRole::kWorker;
  info.address = "10.0.0." + std::to_string(id) + ":4711";
  if (id < 100) {
    info.store_identity = std::string(30, 'a') + std::to_string(10 + (store > 0 ? store : id));
  }
  return info;
}

inline Departure lost(const NodeInfo& node) {
  return {.node = node, .reason = "broke its stream", .silent = at(0.1)};
}

inline JobDescription description() {
  JobDescription d;
  d.id = "digits-7";
  d.name = "digits";
  d.epoch = Epoch(7);
  d.workers = 2;
  d.servers = 2;
  d.batch_size = 32;
  d.iterations = kIterations;
  d.learning_rate = [](Iteration) { return 0.5; };
  d.layers = {"fc"};
  d.why_no_calibration = [](const auto&, const auto&) { return "a test plans without"; };
  d.make_plan = [](JobDescription::PlanRequest wanted) {
    PlannerInput input{.layers = {{"fc", "fully_connected", {10, 1000}, 10010, true}},
                       .batch_size = 32,
                       .epoch = wanted.epoch,
                       .worker_addresses = std::move(wanted.workers),
                       .server_addresses = std::move(wanted.servers),
                       .sync = {}};
    input.sync.chunk_bytes = 4096;
    if (wanted.keep) input.sync.plan = plan_pin_to_json(*wanted.keep);
    return make_plan(input);
  };
  return d;
}

template <typename T>
std::vector<T> only(const JobActions& actions) {
  std::vector<T> found;
  for (const JobAction& action : actions) {
    if (const T* a = std::get_if<T>(&action)) found.push_back(*a);
  }
  return found;
}

}  // namespace poseidon
