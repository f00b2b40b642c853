#include "coordinator/planning/cost/link_model.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/base/address.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

double share_of(const Machine& machine, const std::vector<double>& shares) {
  double sum = 0.0;
  for (const std::size_t server : machine.servers) sum += shares[server];
  return sum;
}

/// No more of anything to carry than `other`.
bool covered_by(const LinkLoad& link, const LinkLoad& other) {
  return link.push_s_per_byte <= other.push_s_per_byte &&
         link.pull_s_per_byte <= other.pull_s_per_byte &&
         link.factor_s_per_byte <= other.factor_s_per_byte;
}

void add_link(std::vector<LinkLoad>& links, const LinkLoad& link) {
  if (std::any_of(links.begin(), links.end(),
                  [&](const LinkLoad& other) { return covered_by(link, other); })) {
    return;
  }
  std::erase_if(links, [&](const LinkLoad& other) { return covered_by(other, link); });
  links.push_back(link);
}

}  // namespace

LinkModel make_link_model(const std::vector<std::string>& worker_addresses,
                          const std::vector<std::string>& server_addresses,
                          const std::vector<WorkerRank>& leaders, const Calibration& calibration) {
  POSEIDON_CHECK(calibration.workers.size() == worker_addresses.size() &&
                     calibration.servers.size() == server_addresses.size(),
                 "every node has a bandwidth");
  LinkModel cluster{.machines = {},
                    .workers = worker_addresses.size(),
                    .contributors = 0,
                    .largest_group = 1,
                    .servers = server_addresses.size(),
                    .server_sum_bytes_per_s = calibration.server_sum_bytes_per_s,
                    .latency_s = calibration.latency_s};
  std::vector<std::string> addresses = worker_addresses;
  addresses.insert(addresses.end(), server_addresses.begin(), server_addresses.end());
  const std::vector<std::size_t> machines = machine_numbers(addresses);
  for (std::size_t node = 0; node < addresses.size(); ++node) {
    const bool is_worker = node < worker_addresses.size();
    const NicSpeed& nic =
        is_worker ? calibration.workers[node] : calibration.servers[node - worker_addresses.size()];
    if (machines[node] == cluster.machines.size()) {
      cluster.machines.push_back({.nic = nic, .servers = {}});
    }
    Machine& machine = cluster.machines[machines[node]];
    machine.nic.send_bytes_per_s = std::max(machine.nic.send_bytes_per_s, nic.send_bytes_per_s);
    machine.nic.receive_bytes_per_s =
        std::max(machine.nic.receive_bytes_per_s, nic.receive_bytes_per_s);
    if (is_worker) {
      ++machine.workers;
      const WorkerRank self(static_cast<std::uint32_t>(node));
      if (leaders.empty() || leaders[node] == self) {
        ++machine.contributors;
        ++cluster.contributors;
      }
      const auto group = static_cast<std::size_t>(std::ranges::count(leaders, self));
      cluster.largest_group = std::max(cluster.largest_group, group);
    } else {
      machine.servers.push_back(node - worker_addresses.size());
    }
  }
  for (std::size_t rank = 0; rank < leaders.size(); ++rank) {
    const std::size_t here = machines[rank], there = machines[leaders[rank].value()];
    if (here == there) continue;
    ++cluster.machines[here].led_elsewhere;
    ++cluster.machines[there].guests;
  }
  for (Machine& machine : cluster.machines) {
    machine.nic.send_bytes_per_s *= kSharedLinkEfficiency;
    machine.nic.receive_bytes_per_s *= kSharedLinkEfficiency;
  }
  return cluster;
}

std::vector<LinkLoad> link_loads(const LinkModel& cluster, const std::vector<double>& shares) {
  std::vector<LinkLoad> links;
  for (const Machine& machine : cluster.machines) {
    const double served = share_of(machine, shares);
    // Rounding must not make equal links differ, so each quantity is formed once.
    const double of_workers =  // what its workers push, and get back
        static_cast<double>(machine.contributors) * (1.0 - served) +
        static_cast<double>(machine.led_elsewhere);
    const double of_servers =  // what its servers get, and give back
        served * static_cast<double>(cluster.contributors - machine.contributors) +
        static_cast<double>(machine.guests);
    const double of_factors =
        static_cast<double>(machine.workers * (cluster.workers - machine.workers));
    const double send_s = 1.0 / machine.nic.send_bytes_per_s;
    const double receive_s = 1.0 / machine.nic.receive_bytes_per_s;
    add_link(links, {of_workers * send_s, of_servers * send_s, of_factors * send_s});
    add_link(links, {of_servers * receive_s, of_workers * receive_s, of_factors * receive_s});
  }
  std::erase_if(links, [](const LinkLoad& link) { return covered_by(link, LinkLoad{}); });
  if (links.size() <= kMaxLinks) return links;
  // The busiest with each kind of traffic, then the busiest with all of it.
  const auto busiest_first = [&links](std::size_t from, auto load) {
    std::stable_sort(links.begin() + static_cast<std::ptrdiff_t>(from), links.end(),
                     [&](const LinkLoad& a, const LinkLoad& b) { return load(a) > load(b); });
  };
  busiest_first(0, [](const LinkLoad& l) { return l.push_s_per_byte; });
  busiest_first(1, [](const LinkLoad& l) { return l.pull_s_per_byte; });
  busiest_first(2, [](const LinkLoad& l) { return l.factor_s_per_byte; });
  busiest_first(3, [](const LinkLoad& l) { return l.push_s_per_byte + l.pull_s_per_byte; });
  links.resize(kMaxLinks);
  return links;
}

std::vector<double> free_bandwidth_shares(const LinkModel& cluster, double ps_bytes,
                                          double factor_bytes) {
  const std::vector<double> equal(cluster.servers, 1.0 / static_cast<double>(cluster.servers));
  if (!(ps_bytes > 0.0)) return equal;
  // With share s, each direction of a machine's NIC carries per byte of parameters
  //   here (1 - s) + s (all - here) = here + s (all - 2 here)
  // of contributors, and all of it in `busy_s` seconds. Where more than half of them are on it,
  // serving more would carry less; the floor keeps one machine from taking everything on that
  // ground.
  const auto share_within = [&](const Machine& machine, double busy_s) {
    if (machine.servers.empty()) return 0.0;
    const auto here = static_cast<double>(machine.contributors);
    const auto all = static_cast<double>(cluster.contributors);
    const auto pairs = static_cast<double>(machine.workers * (cluster.workers - machine.workers));
    const double rate = std::min(machine.nic.send_bytes_per_s, machine.nic.receive_bytes_per_s);
    const double left_bytes = rate * busy_s - here * ps_bytes - pairs * factor_bytes;
    const double per_share_bytes = ps_bytes * std::max(all - 2.0 * here, 0.5);
    return std::clamp(left_bytes / per_share_bytes, 0.0, 1.0);
  };
  const auto total_within = [&](double busy_s) {
    double total = 0.0;
    for (const Machine& machine : cluster.machines) total += share_within(machine, busy_s);
    return total;
  };
  double high_s = 1e-9;
  while (total_within(high_s) < 1.0) {
    high_s *= 2.0;
    if (!(high_s < 1e30)) return equal;
  }
  double low_s = 0.0;
  for (int step = 0; step < 100; ++step) {
    const double middle_s = 0.5 * (low_s + high_s);
    (total_within(middle_s) < 1.0 ? low_s : high_s) = middle_s;
  }
  const double total = total_within(high_s);
  std::vector<double> shares(cluster.servers, 0.0);
  for (const Machine& machine : cluster.machines) {
    const double share = share_within(machine, high_s) / total;
    for (const std::size_t server : machine.servers) {
      shares[server] = share / static_cast<double>(machine.servers.size());
    }
  }
  const bool same = std::all_of(shares.begin(), shares.end(), [&](double share) {
    return std::abs(share - equal[0]) <= 1e-6 * equal[0];
  });
  return same ? equal : shares;
}

}  // namespace poseidon
