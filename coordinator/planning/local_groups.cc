#include "coordinator/planning/local_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/address.h"
#include "common/plan/plan.h"

namespace poseidon {

std::vector<WorkerRank> group_by_machine(const std::vector<std::string>& worker_addresses,
                                         const std::vector<std::string>& server_addresses) {
  std::vector<std::string> addresses = worker_addresses;
  addresses.insert(addresses.end(), server_addresses.begin(), server_addresses.end());
  const std::vector<std::size_t> machines = machine_numbers(addresses);
  const bool nothing_travels =
      std::ranges::all_of(machines, [&](std::size_t machine) { return machine == machines[0]; });
  if (nothing_travels) return {};
  std::map<std::size_t, WorkerRank> first_on;
  std::vector<WorkerRank> leaders;
  bool any = false;
  for (std::uint32_t rank = 0; rank < worker_addresses.size(); ++rank) {
    const auto [leader, is_first] = first_on.emplace(machines[rank], WorkerRank(rank));
    any = any || !is_first;
    leaders.push_back(leader->second);
  }
  return any ? leaders : std::vector<WorkerRank>{};
}

std::vector<std::size_t> rank_order(const std::vector<std::string>& worker_addresses) {
  const std::vector<std::size_t> machines = machine_numbers(worker_addresses);  // as they appear
  std::vector<std::ptrdiff_t> workers_on(machines.size());
  for (const std::size_t machine : machines) ++workers_on[machine];
  std::vector<std::size_t> order(machines.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t worker) {
    return std::pair(-workers_on[machines[worker]], machines[worker]);
  });
  return order;
}

std::vector<std::size_t> rank_order_for(const std::vector<WorkerRank>& leaders,
                                        const std::vector<std::string>& worker_addresses) {
  std::vector<std::vector<std::uint32_t>> groups = local_groups(leaders);
  const auto larger_first = [](const auto& group) { return -std::ssize(group); };
  std::ranges::stable_sort(groups, {}, larger_first);

  std::map<std::size_t, std::vector<std::size_t>> left;  // workers of each machine
  const std::vector<std::size_t> machines = machine_numbers(worker_addresses);
  for (std::size_t worker = 0; worker < machines.size(); ++worker) {
    left[machines[worker]].push_back(worker);
  }
  std::vector<std::size_t> order(leaders.size());
  for (const std::vector<std::uint32_t>& group : groups) {
    std::vector<std::size_t>* from = nullptr;
    for (const std::uint32_t rank : group) {
      if (from == nullptr || from->empty()) {
        from = &std::ranges::min_element(left, {}, [&](const auto& machine) {
                  return larger_first(machine.second);
                })->second;
      }
      order[rank] = from->front();
      from->erase(from->begin());
    }
  }
  return order;
}

std::uint32_t count_contributors(const std::vector<WorkerRank>& leaders, std::size_t workers) {
  if (leaders.empty()) return static_cast<std::uint32_t>(workers);
  return static_cast<std::uint32_t>(std::set(leaders.begin(), leaders.end()).size());
}

std::string groups_text(const std::vector<WorkerRank>& leaders) {
  std::string text;
  for (const std::vector<std::uint32_t>& group : local_groups(leaders)) {
    if (group.size() < 2) continue;
    absl::StrAppend(&text, text.empty() ? "" : " and ", "workers ", absl::StrJoin(group, ", "));
  }
  return text;
}

}  // namespace poseidon
