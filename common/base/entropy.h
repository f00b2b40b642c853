#pragma once

// Random numbers that nobody can foresee and no other process draws: the system's, never a job's
// (random.h has those).
//
// Called by: control_client.cc, directory_identity.cc, stream_proofs.cc. Calls: the C++ library,
// which asks the processor or the kernel.

#include <cstdint>
#include <random>

namespace poseidon {

/// Any thread. All 64 bits are random. Costs about a microsecond.
inline std::uint64_t system_random() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace poseidon
