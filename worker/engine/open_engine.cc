#include "worker/engine/open_engine.h"

#include <dlfcn.h>

#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/device_plugin.h"
#include "worker/engine/network_executor.h"

namespace poseidon {
namespace {

absl::StatusOr<Engine> open_cuda(int ordinal) {
  POSEIDON_ASSIGN_OR_RETURN(const int count, plugin_device_count("cuda"));
  if (ordinal >= count) {
    return absl::InvalidArgumentError(
        count == 0 ? std::string("this machine has no CUDA device")
                   : absl::StrCat("this machine has CUDA devices 0 to ", count - 1));
  }
  POSEIDON_ASSIGN_OR_RETURN(const std::string name, plugin_device_name("cuda", ordinal));
  return Engine{
      absl::StrCat("cuda:", ordinal, " (", name, ")"),
      [ordinal](const NetSpec& net,
                const ExecutorOptions& options) -> absl::StatusOr<std::unique_ptr<Executor>> {
        POSEIDON_ASSIGN_OR_RETURN(
            std::unique_ptr<Device> device,
            make_plugin_device("cuda", {.ordinal = ordinal, .precision = options.precision}));
        return NetworkExecutor::create(net, options, std::move(device));
      },
      [ordinal] { return plugin_device_health("cuda", ordinal); }};
}

// Asked before the plug-in is, whose libraries are hundreds of megabytes: a machine without a GPU
// shall not load them at every start.
absl::Status find_driver() {
  constexpr char kDriver[] = "libcuda.so.1";
  void* const driver = dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) {
    return absl::NotFoundError(absl::StrCat("this machine has no NVIDIA driver (", kDriver, ")"));
  }
  dlclose(driver);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Engine> open_engine(const std::string& device) {
  const Engine cpu{.device = "cpu", .make_executor = make_cpu_executor};
  if (device == "cpu") return cpu;
  if (device == "auto") {
    const absl::Status driver = find_driver();
    absl::StatusOr<Engine> cuda = driver.ok() ? open_cuda(0) : driver;
    if (cuda.ok()) return cuda;
    spdlog::info("computing on the CPU: {}", std::string(cuda.status().message()));
    return cpu;
  }
  absl::string_view number = device;
  int ordinal = -1;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal) && ordinal >= 0) {
    absl::StatusOr<Engine> cuda = open_cuda(ordinal);
    if (cuda.ok()) return cuda;
    return absl::InvalidArgumentError(absl::StrCat("--device ", device, ": ",
                                                   cuda.status().message(),
                                                   "; use --device auto or cpu without a GPU"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device ", device, ": no such device; one of auto, cpu, cuda:N"));
}

}  // namespace poseidon
