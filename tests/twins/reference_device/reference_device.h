#pragma once

// The twin of the real devices for tests: every layer as the obvious loops, sums in double, one
// thread. It keeps its own memory apart from the host's, so that the executor's uploads and
// downloads are exercised without a GPU.

#include <memory>

#include "worker/engine/device.h"

namespace poseidon {

std::unique_ptr<Device> make_reference_device();

}  // namespace poseidon
