// Loading devices: found ones, refused ones, and the error messages. The plug-ins are
// fake_plugin.cc, beside this program.

#include "worker/engine/plugin/device_plugin.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/net/net.h"
#include "nlohmann/json.hpp"
#include "worker/engine/plugin/device_plugin_entry.h"
#include "worker/engine/plugin/open_engine.h"

namespace poseidon::device_plugin_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

TEST(DevicePlugin, MakesItsDevices) {
  const auto count = plugin_device_count("fake");
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, 2);
  EXPECT_EQ(*plugin_device_name("fake", 1), "Fake 1");
  EXPECT_EQ(*plugin_device_bus_id("fake", 1), "0000:01:00.0");
  EXPECT_EQ(plugin_device_name("fake", 2).status(), absl::InvalidArgumentError("no such fake"));
  EXPECT_TRUE(plugin_device_health("fake", 0).ok());
  EXPECT_EQ(plugin_device_health("fake", 1), absl::InternalError("worn out"));
  const auto device = make_plugin_device("fake", {.ordinal = 1, .precision = "bf16"});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->name(), "fake:1 bf16");
  // Memory is this program's own.
  const std::vector<float> values = {1.0f, -2.0f, 3.5f};
  std::vector<float> back(3);
  auto memory = (*device)->allocate(12);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE((*device)->upload(memory->get(), values.data(), 12).ok());
  ASSERT_TRUE((*device)->download(back.data(), memory->get(), 12).ok());
  EXPECT_EQ(back, values);
}

TEST(DevicePlugin, OneOfAnotherBuildIsRefused) {
  const absl::Status status = plugin_device_count("stale").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libposeidon_stale.so is of another build"),
                    HasSubstr("'poseidon device 0, compiler 1, abseil 1'"),
                    HasSubstr(absl::StrCat("this program '", kDevicePluginInterface, "'"))));
  EXPECT_THAT(kDevicePluginInterface, MatchesRegex("poseidon device [0-9a-f]{16}, compiler .*"));
}

TEST(DevicePlugin, OneWithoutTheFunctionIsRefused) {
  const absl::Status status = make_plugin_device("hollow", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libposeidon_hollow.so"), HasSubstr("poseidon_device_plugin")));
}

TEST(DevicePlugin, AMissingFileIsNamedWithEveryPlace) {
  const absl::Status status = plugin_device_name("absent", 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/tests/libposeidon_absent.so: no such file"),
                    HasSubstr("/lib/poseidon/libposeidon_absent.so: no such file"),
                    HasSubstr("cannot open shared object file")));  // dlerror's
}

// "auto" computes on the CPU where there is no plug-in, but not where there is one that is broken.
TEST(DevicePlugin, AFileThatCannotBeLoadedIsNoMissingFile) {
  const std::filesystem::path file =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libposeidon_torn.so";
  std::ofstream(file) << "half a library";
  const absl::Status status = plugin_device_count("torn").status();
  std::filesystem::remove(file);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("the plug-in for torn devices cannot be loaded"),
                    HasSubstr(file.string() + ": ")));
}

TEST(DevicePlugin, KindsAreNoPaths) {
  for (const char* kind : {"", "../fake", "Fake", "a.b"}) {
    EXPECT_EQ(plugin_device_count(kind).status().code(), absl::StatusCode::kInvalidArgument)
        << kind;
  }
}

// The CUDA plug-in is not beside the tests; whether the loader finds one elsewhere or not, a
// hundredth GPU is not there.
TEST(OpenEngine, SaysWhatItCannotOpen) {
  EXPECT_EQ(open_engine("cpu")->device, "cpu");
  for (const char* device : {"cuda:99", "cuda:", "cuda:-1", "cuda:x", "gpu", ""}) {
    const auto engine = open_engine(device);
    ASSERT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument) << device;
    EXPECT_THAT(std::string(engine.status().message()),
                StartsWith(std::string("--device ") + device));
  }
  EXPECT_TRUE(open_engine("auto").ok()) << "at worst the CPU";
}

TEST(OpenEngine, TheCpuStandsInForNoGpuButNotForABrokenOne) {
  const absl::Status broken = absl::InternalError("cudaGetDeviceCount: unknown error (999)");
  EXPECT_TRUE(may_compute_on_cpu(0, broken).ok()) << "a driver without a GPU";
  EXPECT_TRUE(may_compute_on_cpu(1, absl::NotFoundError("no plug-in")).ok());
  EXPECT_TRUE(may_compute_on_cpu(1, absl::UnimplementedError("capability 6.1")).ok());
  const absl::Status refused = may_compute_on_cpu(2, broken);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("this machine has 2 GPUs"), HasSubstr("unknown error (999)"),
                    HasSubstr("--device cpu")));
  EXPECT_FALSE(may_compute_on_cpu(1, absl::InvalidArgumentError("CUDA finds no device")).ok())
      << "one that has failed is counted by the kernel alone";
}

TEST(OpenEngine, KnowsHiddenGpus) {
  EXPECT_FALSE(hides_gpus(nullptr)) << "not set";
  for (const char* visible : {"0", "1,0", "GPU-8f2a", "0,-1"}) {
    EXPECT_FALSE(hides_gpus(visible)) << visible;
  }
  for (const char* visible : {"", "-1", "-1,0", "NoDevFiles"}) {
    EXPECT_TRUE(hides_gpus(visible)) << visible;
  }
}

TEST(OpenEngine, TheCpuRefusesPrecisionsThatItDoesNotCompute) {
  const auto net = parse_network(nlohmann::json::parse(R"({
    "name": "one", "input": [3], "layers": [
      {"name": "fc", "type": "fully_connected", "outputs": 2},
      {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  ASSERT_TRUE(net.ok()) << net.status();
  const auto engine = open_engine("cpu");
  const auto make = [&](const char* precision) {
    return engine->make_executor(*net, {.batch_size = 2, .precision = precision}).status();
  };
  EXPECT_TRUE(make("fp32").ok());
  EXPECT_TRUE(make("tf32").ok()) << "a permission";
  for (const char* precision : {"bf16", "fp16"}) {
    EXPECT_EQ(make(precision).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(make(precision).message()),
                HasSubstr(std::string("precision \"") + precision));
  }
}

}  // namespace
}  // namespace poseidon::device_plugin_test
