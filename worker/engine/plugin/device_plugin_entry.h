#pragma once

// The functions that a device plug-in (libposeidon_<kind>.so) exports, and what the program passes
// to it. Plug-ins are C++ and share our headers, so both sides must be built with one compiler and
// one Abseil. The interface text states these and is compared first.
//
// Called by: device_plugin.h, which loads plug-ins; worker/engine/cuda/cuda_device.cc exports its
// functions. Calls: nothing.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/base/config.h"
#include "absl/status/statusor.h"
#include "worker/engine/device.h"
#include "worker/engine/plugin/device_plugin.h"
#include "worker/engine/plugin/device_plugin_digest.h"

namespace poseidon {

#define POSEIDON_TEXT_OF_VALUE(value) #value
#define POSEIDON_TEXT_OF(value) POSEIDON_TEXT_OF_VALUE(value)
/// Changes whenever the interface may have changed: this file, or a header of ours that it
/// includes, directly or not.
inline constexpr char kDevicePluginInterface[] =
    "poseidon device " POSEIDON_DEVICE_PLUGIN_HEADERS ", compiler " __VERSION__
    ", abseil " POSEIDON_TEXT_OF(ABSL_LTS_RELEASE_VERSION);

/// The functions of the program for the plug-in; outlives it. Any thread.
struct DevicePluginHost {
  /// common/memory/tensor_memory.h of the program: a plug-in's own copy of it would be another
  /// arena.
  void* (*allocate_tensor_memory)(std::size_t bytes);
  void (*free_tensor_memory)(void* memory);
  void (*warn)(const std::string& message);
};

/// Any thread.
struct DevicePlugin {
  absl::StatusOr<int> (*device_count)();  ///< 0 where there is a driver and no device
  absl::StatusOr<std::string> (*device_name)(int ordinal);
  absl::StatusOr<std::string> (*device_bus_id)(int ordinal);  ///< "0000:3b:00.0", of PCI
  absl::StatusOr<std::unique_ptr<Device>> (*make_device)(const DeviceOptions& options);
  absl::Status (*device_health)(int ordinal);  ///< as Engine::health; must not wait for the device
};

/// The functions a plug-in exports, by these names.
using DevicePluginInterfaceFunction = const char* (*)();
using DevicePluginFunction = const DevicePlugin* (*)(const DevicePluginHost* host);
inline constexpr char kDevicePluginInterfaceSymbol[] = "poseidon_device_plugin_interface";
inline constexpr char kDevicePluginSymbol[] = "poseidon_device_plugin";

}  // namespace poseidon
