#pragma once

// What addresses say of the machines behind them. Pure.

#include <cstddef>
#include <string>
#include <vector>

namespace poseidon {

/// Of HOST:PORT.
std::string host_of(const std::string& address);

/// By which machine each of these addresses (HOST:PORT) is: numbers from 0 in order of appearance.
/// The same host means the same machine; "" is a machine of its own.
std::vector<std::size_t> machine_numbers(const std::vector<std::string>& addresses);
bool same_machine(const std::string& one, const std::string& other);

}  // namespace poseidon
