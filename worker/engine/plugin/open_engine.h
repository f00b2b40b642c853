#pragma once

// Opens the engines of poseidon-worker by device name (--device).
//
// Called by: worker/main.cc. Calls: worker/engine/cpu/cpu_device.h, device_plugin.h.

#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/engine.h"

namespace poseidon {

/// By its name (device_name.h). "auto" is cuda:0 where the plug-in loads and finds
/// a device, else cpu where may_compute_on_cpu, and the log says why. INVALID_ARGUMENT for any
/// other name and for a device that this machine or this version does not have.
absl::StatusOr<Engine> open_engine(const std::string& name);

/// Whether CUDA_VISIBLE_DEVICES (null: not set) hides all GPUs from CUDA: its first entry names
/// none.
bool hides_gpus(const char* visible_devices);

/// Whether "auto" is the CPU where the kernel has `gpus` NVIDIA GPUs for this process and CUDA did
/// not open, for the reason `cuda`: OK where there is no GPU, no plug-in (NOT_FOUND), or a GPU too
/// old for it (UNIMPLEMENTED). Otherwise FAILED_PRECONDITION names a GPU that is out of order or
/// lacks its libraries, because all other workers of a job would wait for a machine that quietly
/// computes on its CPU.
absl::Status may_compute_on_cpu(int gpus, const absl::Status& cuda);

}  // namespace poseidon
