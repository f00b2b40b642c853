#pragma once

// For the GPU tests: the device under test, named on the command line, and the skip with a reason
// when there is none.
//
//     gpu_layers_test [--device cuda:0] [--precision fp32] [--require] [--every 7] [GoogleTest's]
//
// --device cpu checks the tests themselves on a machine without a GPU. With --require a missing
// device is a failure, for machines that are known to have one; a precision that a device lacks is
// still skipped. With --every N the layers' grid is N times coarser: for tools that make everything
// a hundred times slower.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/layer_checks.h"
#include "worker/engine/device.h"

namespace poseidon::testing {

struct DeviceUnderTest {
  std::string device = "cuda:0";
  std::string precision;  ///< the only one to try; "": all
  bool required = false;
  int every = 1;  ///< of the grid's cases in a group: the last, and every so many before
};
/// What the command line said; constant once main() has read it.
const DeviceUnderTest& device_under_test();

/// A new device of that name. NOT_FOUND, FAILED_PRECONDITION or the plug-in's own error where there
/// is none; UNIMPLEMENTED for a precision that it does not have.
absl::StatusOr<std::unique_ptr<Device>> make_device_under_test(const std::string& precision);

/// A test on one device at one precision (the parameter); skipped with a word where there is none,
/// with other words where the device has not that precision.
class PrecisionTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  /// Another device of the same kind; null, and the test has failed, where it cannot be made.
  std::unique_ptr<Device> make_device() const;

  const Accuracy accuracy_ = accuracy_of(GetParam());
  std::unique_ptr<Device> device_;
};

/// What the emulated GPU's plug-in counts (tests/twins/emulated_gpu), since it was loaded.
struct EmulatedCounters {
  /// Nothing of any other device.
  static std::optional<EmulatedCounters> of(const Device& device);

  unsigned long (*channels_last)();    ///< convolutions
  unsigned long (*biases_behind)();    ///< of them, with the bias added by cuDNN
  const char* (*setup_calls)();        ///< that allocate, free or wait for the GPU, by their names
  unsigned long (*stray_calls)();      ///< of threads that had chosen no GPU
  unsigned long (*pageable_copies)();  ///< from or to host memory that is not pinned
  unsigned long (*timing_calls)();     ///< events with a time recorded, and times asked for
};

inline const std::vector<std::string> kPrecisions = {"fp32", "tf32", "bf16", "fp16"};
std::string precision_name(const ::testing::TestParamInfo<std::string>& info);

}  // namespace poseidon::testing
