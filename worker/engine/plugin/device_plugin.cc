#include "worker/engine/plugin/device_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/memory/tensor_memory.h"
#include "spdlog/spdlog.h"
#include "worker/engine/plugin/device_plugin_entry.h"

namespace poseidon {
namespace {

constexpr DevicePluginHost kHost = {
    .allocate_tensor_memory = allocate_tensor_memory,
    .free_tensor_memory = free_tensor_memory,
    .warn = [](const std::string& message) { spdlog::warn("{}", message); }};

bool is_kind(const std::string& kind) {
  return !kind.empty() && std::all_of(kind.begin(), kind.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::vector<std::string> places(const std::string& file) {
  std::vector<std::string> found;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path folder = program.parent_path();
    found.push_back(folder / file);
    found.push_back((folder / "../lib/poseidon" / file).lexically_normal());
  }
  found.push_back(file);  // the loader's own path
  return found;
}

absl::StatusOr<void*> open_library(const std::string& kind) {
  const std::string file = absl::StrCat("libposeidon_", kind, ".so");
  std::vector<std::string> said;
  bool was_there = false;
  for (const std::string& place : places(file)) {
    // What is no file is asked of the loader only by its bare name.
    std::error_code error;
    if (place != file && !std::filesystem::exists(place, error)) {
      said.push_back(absl::StrCat(place, ": no such file"));
      continue;
    }
    if (void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* const error_text = dlerror();
    const std::string reason = error_text == nullptr ? "cannot be loaded" : error_text;
    said.push_back(absl::StrCat(place, ": ", reason));
    // The loader's words begin with the file that it blames: the bare name where it found none,
    // else the place where it did, or a library that is missing.
    was_there |= place != file || !absl::StartsWith(reason, absl::StrCat(file, ":"));
  }
  const std::string looked_at = absl::StrJoin(said, "; ");
  if (was_there) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the plug-in for ", kind, " devices cannot be loaded; looked at: ", looked_at));
  }
  return absl::NotFoundError(
      absl::StrCat("no plug-in for ", kind, " devices; looked at: ", looked_at));
}

template <typename Function>
absl::StatusOr<Function> symbol(void* library, const std::string& kind, const char* name) {
  if (void* const found = dlsym(library, name)) return reinterpret_cast<Function>(found);
  return absl::FailedPreconditionError(absl::StrCat(
      "libposeidon_", kind, ".so is no device plug-in of Poseidon: it has no function ", name));
}

// A plug-in that is refused stays loaded: what its constructors did cannot be taken back.
absl::StatusOr<const DevicePlugin*> load(const std::string& kind) {
  if (!is_kind(kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", kind, "' is no kind of device; kinds are of a-z, 0-9 and _"));
  }
  POSEIDON_ASSIGN_OR_RETURN(void* const library, open_library(kind));
  POSEIDON_ASSIGN_OR_RETURN(const auto interface, symbol<DevicePluginInterfaceFunction>(
                                                      library, kind, kDevicePluginInterfaceSymbol));
  if (std::strcmp(interface(), kDevicePluginInterface) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "libposeidon_", kind, ".so is of another build: it has interface '", interface(),
        "', this program '", kDevicePluginInterface, "'; install both from one version"));
  }
  POSEIDON_ASSIGN_OR_RETURN(const auto plugin,
                            symbol<DevicePluginFunction>(library, kind, kDevicePluginSymbol));
  return plugin(&kHost);
}

// Process-wide, like the loader's own table of libraries that it stands for.
absl::StatusOr<const DevicePlugin*> loaded(const std::string& kind) {
  static std::mutex mutex;
  static std::map<std::string, absl::StatusOr<const DevicePlugin*>>* const plugins =
      new std::map<std::string, absl::StatusOr<const DevicePlugin*>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = plugins->find(kind);
  if (found == plugins->end()) found = plugins->emplace(kind, load(kind)).first;
  return found->second;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> make_plugin_device(const std::string& kind,
                                                           const DeviceOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const DevicePlugin* const plugin, loaded(kind));
  return plugin->make_device(options);
}

absl::StatusOr<int> plugin_device_count(const std::string& kind) {
  POSEIDON_ASSIGN_OR_RETURN(const DevicePlugin* const plugin, loaded(kind));
  return plugin->device_count();
}

absl::StatusOr<std::string> plugin_device_name(const std::string& kind, int ordinal) {
  POSEIDON_ASSIGN_OR_RETURN(const DevicePlugin* const plugin, loaded(kind));
  return plugin->device_name(ordinal);
}

absl::StatusOr<std::string> plugin_device_bus_id(const std::string& kind, int ordinal) {
  POSEIDON_ASSIGN_OR_RETURN(const DevicePlugin* const plugin, loaded(kind));
  return plugin->device_bus_id(ordinal);
}

absl::Status plugin_device_health(const std::string& kind, int ordinal) {
  POSEIDON_ASSIGN_OR_RETURN(const DevicePlugin* const plugin, loaded(kind));
  return plugin->device_health(ordinal);
}

}  // namespace poseidon
