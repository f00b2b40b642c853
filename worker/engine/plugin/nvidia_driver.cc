#include "worker/engine/plugin/nvidia_driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace poseidon {

absl::Status find_nvidia_driver() {
  constexpr char kDriver[] = "libcuda.so.1";
  void* const driver = dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine has no NVIDIA driver (", kDriver, ")"));
  }
  dlclose(driver);
  return absl::OkStatus();
}

}  // namespace poseidon
