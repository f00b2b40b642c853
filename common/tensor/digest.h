#pragma once

// A 64-bit fingerprint of floats, which shows when replicas differ. Pure.
//
// Called by: sync/client/sync_client.h, for a layer's parameters in host memory. The digest travels
// with the layer's factors (common/wire/factor_wire.h), and sync/routes/sfb_route.h compares those
// of all workers. Calls: nothing.

#include <cstdint>
#include <span>

namespace poseidon {

/// Hashes the bits, so -0.0 and 0.0 differ. Detects accidents: two different tensors share a digest
/// in about one case in 2^60. It is not cryptographic and can be forged. Never 0, which means
/// "absent" on the wire.
std::uint64_t digest_of(std::span<const float> values);

}  // namespace poseidon
