#pragma once

// A 64-bit fingerprint of floats, by which replicas find out that they differ. Pure.
//
// Before: sync/client/sync_client.h has a layer's parameters in host memory. After: it travels with
// the layer's factors (common/wire/factor_wire.h); sync/routes/sfb_route.h compares those of all
// workers.

#include <cstdint>
#include <span>

namespace poseidon {

/// Of the bits: -0.0 and 0.0 differ. Good against accidents: two tensors that differ have different
/// digests, but for one case in 2^60 or so. No cryptography: whoever wants can forge it. Never 0,
/// which on the wire means absent.
std::uint64_t digest_of(std::span<const float> values);

}  // namespace poseidon
