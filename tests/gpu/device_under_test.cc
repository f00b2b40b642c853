#include "tests/gpu/device_under_test.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/run_tests.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/plugin/device_plugin.h"

namespace poseidon::testing {
namespace {

constexpr const char* kCuda = "cuda:";
constexpr int kCpuThreads = 2;

/// Whether a test of this process had a device: one that cannot be had any more has failed.
bool was_there = false;

DeviceUnderTest& chosen() {
  static DeviceUnderTest device;
  return device;
}

/// The value of `--name VALUE` or `--name=VALUE` at argument i, which then is its last; nullptr for
/// another argument.
const char* value_of(const char* name, int argc, char** argv, int& i) {
  absl::string_view argument = argv[i];
  if (argument == name && i + 1 < argc) return argv[++i];
  const std::string prefix = absl::StrCat(name, "=");
  return absl::StartsWith(argument, prefix) ? argv[i] + prefix.size() : nullptr;
}

[[noreturn]] void refuse(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(2);
}

void read_command_line(int argc, char** argv) {
  DeviceUnderTest& device = chosen();
  for (int i = 1; i < argc; ++i) {
    if (const char* name = value_of("--device", argc, argv, i)) {
      device.device = name;
    } else if (const char* precision = value_of("--precision", argc, argv, i)) {
      device.precision = precision;
    } else if (const char* every = value_of("--every", argc, argv, i)) {
      if (!absl::SimpleAtoi(every, &device.every) || device.every < 1) {
        refuse(absl::StrCat("--every ", every, ": must be a number above 0"));
      }
    } else if (std::strcmp(argv[i], "--require") == 0) {
      device.required = true;
    } else {
      refuse(absl::StrCat(argv[i],
                          ": no such option; one of --device cuda:N|cpu, --precision "
                          "fp32|tf32|bf16|fp16, --every N, --require and GoogleTest's"));
    }
  }
}

}  // namespace

const DeviceUnderTest& device_under_test() { return chosen(); }

absl::StatusOr<std::unique_ptr<Device>> make_device_under_test(const std::string& precision) {
  const std::string& name = device_under_test().device;
  if (name == "cpu") {
    if (precision == "fp32") return make_cpu_device(kCpuThreads);
    return absl::UnimplementedError(
        absl::StrCat("the CPU device computes in fp32 alone, not in ", precision));
  }
  DeviceOptions options{.precision = precision};
  if (!absl::StartsWith(name, kCuda) ||
      !absl::SimpleAtoi(absl::string_view(name).substr(std::strlen(kCuda)), &options.ordinal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", name, ": no such device; one of cpu, cuda:N"));
  }
  return make_plugin_device("cuda", options);
}

std::optional<EmulatedCounters> EmulatedCounters::of(const Device& device) {
  if (device.name().find("emulated GPU") == std::string::npos) return std::nullopt;
  void* const plugin = dlopen("libposeidon_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  EmulatedCounters counters{};
  const auto find = [&]<typename Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(plugin == nullptr ? nullptr : dlsym(plugin, name));
    if (function == nullptr) refuse(absl::StrCat("the emulated GPU has no ", name));
  };
  find(counters.channels_last, "poseidon_emulated_channels_last");
  find(counters.biases_behind, "poseidon_emulated_biases_behind");
  find(counters.setup_calls, "poseidon_emulated_setup_calls");
  find(counters.stray_calls, "poseidon_emulated_stray_calls");
  find(counters.pageable_copies, "poseidon_emulated_pageable_copies");
  find(counters.timing_calls, "poseidon_emulated_timing_calls");
  dlclose(plugin);  // the device keeps it
  return counters;
}

void PrecisionTest::SetUp() {
  const DeviceUnderTest& wanted = device_under_test();
  if (!wanted.precision.empty() && wanted.precision != GetParam()) {
    GTEST_SKIP() << "only " << wanted.precision << " was asked for";
  }
  auto device = make_device_under_test(GetParam());
  if (device.ok()) {
    device_ = *std::move(device);
    was_there = true;
    return;
  }
  absl::Status status = device.status();
  if (absl::IsUnimplemented(status)) {
    // A GPU that is too old is that too, but at every precision.
    const absl::Status plain = make_device_under_test("fp32").status();
    if (plain.ok()) {
      GTEST_SKIP() << wanted.device << " does not compute in " << GetParam() << ": " << status;
    }
    status = plain;
  }
  if (wanted.required || was_there) FAIL() << wanted.device << ": " << status;
  GTEST_SKIP() << "no device " << wanted.device << " here: " << status;
}

std::unique_ptr<Device> PrecisionTest::make_device() const {
  auto device = make_device_under_test(GetParam());
  if (device.ok()) return *std::move(device);
  ADD_FAILURE() << "another " << device_under_test().device << ": " << device.status();
  return nullptr;
}

std::string precision_name(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace poseidon::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);  // takes its own options out
  poseidon::testing::read_command_line(argc, argv);
  return poseidon::testing_support::run_tests();
}
