#pragma once

// The twin of the real devices for tests: every layer as plain loops, sums in double, one thread.
// Its memory is separate from the host's, so that tests exercise the executor's uploads and
// downloads without a GPU.

#include <memory>

#include "worker/engine/device.h"

namespace poseidon {

std::unique_ptr<Device> make_reference_device();

}  // namespace poseidon
