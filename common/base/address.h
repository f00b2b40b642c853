#pragma once

// Finds out from addresses which nodes share a machine. Pure.
//
// Called by: coordinator/job, coordinator/planning and cli/doctor. Calls: nothing.

#include <cstddef>
#include <string>
#include <vector>

namespace poseidon {

/// The host of HOST:PORT.
std::string host_of(const std::string& address);

/// The machine number of each address (HOST:PORT), from 0 in order of appearance. Equal hosts are
/// one machine; each "" is a machine of its own.
std::vector<std::size_t> machine_numbers(const std::vector<std::string>& addresses);
bool same_machine(const std::string& one, const std::string& other);

}  // namespace poseidon
