#include "worker/engine/open_engine.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/engine/cpu/cpu_device.h"

namespace poseidon {

absl::StatusOr<Engine> open_engine(const std::string& device) {
  if (device == "auto" || device == "cpu") return Engine{"cpu", make_cpu_executor};
  if (absl::StartsWith(device, "cuda:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device ", device, ": this version has no CUDA engine yet; use --device cpu"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device ", device, ": no such device; one of auto, cpu, cuda:N"));
}

}  // namespace poseidon
