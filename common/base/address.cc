#include "common/base/address.h"

#include <algorithm>
#include <map>

namespace poseidon {

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::vector<std::size_t> machine_numbers(const std::vector<std::string>& addresses) {
  std::map<std::string, std::size_t> machine_of_host;
  std::vector<std::size_t> numbers;
  std::size_t machines = 0;
  for (const std::string& address : addresses) {
    const std::size_t number =
        address.empty() ? machines
                        : machine_of_host.emplace(host_of(address), machines).first->second;
    machines = std::max(machines, number + 1);
    numbers.push_back(number);
  }
  return numbers;
}

bool same_machine(const std::string& one, const std::string& other) {
  return !one.empty() && !other.empty() && host_of(one) == host_of(other);
}

}  // namespace poseidon
