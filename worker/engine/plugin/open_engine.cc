#include "worker/engine/plugin/open_engine.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "spdlog/spdlog.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor/network_executor.h"
#include "worker/engine/plugin/device_name.h"
#include "worker/engine/plugin/device_plugin.h"
#include "worker/engine/plugin/nvidia_driver.h"

namespace poseidon {
namespace {

absl::StatusOr<Engine> open_cuda(int ordinal) {
  POSEIDON_ASSIGN_OR_RETURN(const int count, plugin_device_count("cuda"));
  if (ordinal >= count) {
    return absl::InvalidArgumentError(
        count == 0 ? std::string("CUDA finds no device")
                   : absl::StrCat("this machine has CUDA devices 0 to ", count - 1));
  }
  POSEIDON_ASSIGN_OR_RETURN(const std::string name, plugin_device_name("cuda", ordinal));
  absl::StatusOr<std::string> bus_id = plugin_device_bus_id("cuda", ordinal);
  if (!bus_id.ok()) {  // only metrics use it; computing does not
    spdlog::warn("{}", std::string(bus_id.status().message()));
    bus_id = "unknown";
  }
  // Nothing so far has used the GPU itself. One that is out of order is found here, not by the
  // first job.
  POSEIDON_RETURN_IF_ERROR(make_plugin_device("cuda", {.ordinal = ordinal}).status());
  return Engine{
      absl::StrCat("cuda:", ordinal, " (", name, ")"),
      [ordinal](const NetSpec& net,
                const ExecutorOptions& options) -> absl::StatusOr<std::unique_ptr<Executor>> {
        absl::StatusOr<std::unique_ptr<Device>> device =
            make_plugin_device("cuda", {.ordinal = ordinal, .precision = options.precision});
        // The GPU has been opened before: it is the job's precision.
        if (absl::IsUnimplemented(device.status())) {
          return absl::InvalidArgumentError(device.status().message());
        }
        POSEIDON_RETURN_IF_ERROR(device.status());
        return NetworkExecutor::create(net, options, *std::move(device));
      },
      [ordinal] { return plugin_device_health("cuda", ordinal); }, *bus_id};
}

constexpr char kDriverDevice[] = "/dev/nvidiactl";

// A folder for each, which stays when the GPU no longer answers.
int gpus_of_kernel() {
  int gpus = 0;
  std::error_code error;
  std::filesystem::directory_iterator each("/proc/driver/nvidia/gpus", error);
  for (; !error && each != std::filesystem::directory_iterator(); each.increment(error)) ++gpus;
  return gpus;
}

// Containers see those of their machine even where they got none, and then lack the driver's
// device.
bool has_driver_device() { return ::access(kDriverDevice, R_OK | W_OK) == 0; }

Engine cpu_engine() { return {.device = "cpu", .make_executor = make_cpu_executor}; }

absl::StatusOr<Engine> open_best() {
  // Before the plug-in, whose libraries are hundreds of megabytes: a machine without a GPU shall
  // not load them at every start.
  const absl::Status driver = find_nvidia_driver();
  absl::StatusOr<Engine> cuda = driver.ok() ? open_cuda(0) : driver;
  if (cuda.ok()) return cuda;
  // CUDA's own switch, which people use to keep a process off the GPUs: the only variable of the
  // environment that is read here, as CUDA reads it.
  const int there = hides_gpus(std::getenv("CUDA_VISIBLE_DEVICES")) ? 0 : gpus_of_kernel();
  POSEIDON_RETURN_IF_ERROR(may_compute_on_cpu(has_driver_device() ? there : 0, cuda.status()));
  spdlog::log(there > 0 ? spdlog::level::warn : spdlog::level::info, "computing on the CPU: {}{}",
              std::string(cuda.status().message()),
              there > 0 && !has_driver_device()
                  ? absl::StrCat("; the kernel knows of ", there, there == 1 ? " GPU" : " GPUs",
                                 ", but there is no ", kDriverDevice,
                                 " that we may use: as root, "
                                 "nvidia-modprobe -c 255 makes it")
                  : std::string());
  return cpu_engine();
}

}  // namespace

bool hides_gpus(const char* visible_devices) {
  if (visible_devices == nullptr) return false;
  const absl::string_view visible = visible_devices;
  return visible.empty() || visible == "NoDevFiles" || absl::StartsWith(visible, "-");
}

absl::Status may_compute_on_cpu(int gpus, const absl::Status& cuda) {
  if (gpus == 0 || absl::IsNotFound(cuda) || absl::IsUnimplemented(cuda)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--device auto: this machine has ", gpus, gpus == 1 ? " GPU" : " GPUs",
      " but CUDA cannot use it: ", cuda.message(),
      "; see nvidia-smi, the kernel's log (Xid) and CUDA_VISIBLE_DEVICES, or choose --device cpu"));
}

absl::StatusOr<Engine> open_engine(const std::string& name) {
  POSEIDON_ASSIGN_OR_RETURN(const DeviceName device, parse_device_name(name));
  switch (device.kind) {
    case DeviceName::Kind::kAuto:
      return open_best();
    case DeviceName::Kind::kCpu:
      break;
    case DeviceName::Kind::kCuda: {
      absl::StatusOr<Engine> cuda = open_cuda(device.ordinal);
      if (cuda.ok()) return cuda;
      return absl::InvalidArgumentError(absl::StrCat("--device ", name, ": ",
                                                     cuda.status().message(),
                                                     "; use --device auto or cpu without a GPU"));
    }
  }
  return cpu_engine();
}

}  // namespace poseidon
