#include "worker/engine/plugin/device_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace poseidon {

absl::StatusOr<DeviceName> parse_device_name(const std::string& name) {
  if (name == "auto") return DeviceName{};
  if (name == "cpu") return DeviceName{.kind = DeviceName::Kind::kCpu};
  absl::string_view number = name;
  int ordinal = -1;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal) && ordinal >= 0) {
    return DeviceName{.kind = DeviceName::Kind::kCuda, .ordinal = ordinal};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device ", name, ": no such device; one of auto, cpu, cuda:N"));
}

}  // namespace poseidon
