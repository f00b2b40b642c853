// GPU figures from a substitute of NVIDIA's library and from a missing or wrong library, and their
// form in a scrape.

#include "common/pages/gpu_monitor.h"

#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "common/pages/node_metrics.h"
#include "gmock/gmock.h"
#include "tests/support/page_values.h"

namespace poseidon::gpu_monitor_test {
namespace {

using ::testing::HasSubstr;
using testing_support::value_of;

const char* const kFake = POSEIDON_FAKE_NVML;  // a file's name, of CMake
const char* const kBusId = "0000:3b:00.0";

class Nvml : public ::testing::Test {
 protected:
  Nvml() : library_(::dlopen(kFake, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(library_, nullptr) << ::dlerror();
    for (const char* name :
         {"fake_nvml_init_code", "fake_nvml_read_code", "fake_nvml_power_code"}) {
      code(name) = 0;
    }
  }
  ~Nvml() override { ::dlclose(library_); }
  std::int32_t& code(const char* name) {
    return *static_cast<std::int32_t*>(::dlsym(library_, name));
  }
  void* const library_;
};

TEST_F(Nvml, TellsItsGpusFigures) {
  {
    const auto monitor = open_nvml_monitor(kBusId, kFake);
    ASSERT_TRUE(monitor.ok()) << monitor.status();
    const GpuFigures figures = (*monitor)->read();
    EXPECT_EQ(figures.memory_used_bytes, 10.0 * (1 << 30));
    EXPECT_EQ(figures.memory_total_bytes, 80.0 * (1 << 30));
    EXPECT_EQ(figures.utilization, 0.97);
    EXPECT_EQ(figures.power_watts, 412.5);
    EXPECT_EQ(figures.temperature_celsius, 61.0);
    EXPECT_EQ(code("fake_nvml_initialised"), 1);
  }
  EXPECT_EQ(code("fake_nvml_initialised"), 0) << "given back";
}

TEST_F(Nvml, LeavesOutWhatItIsNotTold) {
  const auto monitor = open_nvml_monitor(kBusId, kFake);
  ASSERT_TRUE(monitor.ok()) << monitor.status();
  code("fake_nvml_power_code") = 3;
  EXPECT_FALSE((*monitor)->read().power_watts.has_value());
  EXPECT_TRUE((*monitor)->read().utilization.has_value());
  code("fake_nvml_power_code") = 0;
  code("fake_nvml_read_code") = 15;  // the GPU is lost
  const GpuFigures figures = (*monitor)->read();
  EXPECT_FALSE(figures.memory_used_bytes.has_value());
  EXPECT_FALSE(figures.memory_total_bytes.has_value());
  EXPECT_FALSE(figures.utilization.has_value());
  EXPECT_FALSE(figures.temperature_celsius.has_value());
}

TEST_F(Nvml, NamesWhatIsMissing) {
  const auto absent = open_nvml_monitor(kBusId, "libnvidia-ml-of-nowhere.so.1");
  EXPECT_TRUE(absl::IsNotFound(absent.status()));
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("libnvidia-ml-of-nowhere.so.1"));

  const auto other_library = open_nvml_monitor(kBusId, "libm.so.6");
  EXPECT_THAT(std::string(other_library.status().message()),
              HasSubstr("libm.so.6 has no function nvmlInit_v2"));

  const auto other_gpu = open_nvml_monitor("0000:3c:00.0", kFake);
  EXPECT_THAT(std::string(other_gpu.status().message()),
              HasSubstr("GPU at 0000:3c:00.0: Invalid Argument"));
  EXPECT_EQ(code("fake_nvml_initialised"), 0);

  code("fake_nvml_init_code") = 9;
  const auto no_driver = open_nvml_monitor(kBusId, kFake);
  EXPECT_THAT(std::string(no_driver.status().message()), HasSubstr("Driver Not Loaded"));
  EXPECT_EQ(code("fake_nvml_initialised"), 0);
}

TEST(GpuPage, ShowsWhatThereIs) {
  const NodeProbe probe;
  const RefusalCounts refusals;
  MemoryGpuMonitor monitor;
  NodeFigures figures{.role = "worker", .probe = &probe, .refusals = &refusals};
  const auto has = [&](const std::string& name) {
    for (const auto& family : node_page(figures, {})) {
      if (family.name == name) return true;
    }
    return false;
  };
  EXPECT_FALSE(has("poseidon_gpu_memory_used_bytes")) << "no GPU";
  figures.gpu = &monitor;
  EXPECT_FALSE(has("poseidon_gpu_memory_used_bytes")) << "one that tells nothing";
  monitor.set({.memory_used_bytes = 1024.0, .utilization = 0.5, .temperature_celsius = 60.0});
  const MetricFamilies page = node_page(figures, {});
  EXPECT_EQ(value_of(page, "poseidon_gpu_memory_used_bytes", {}), 1024.0);
  EXPECT_EQ(value_of(page, "poseidon_gpu_utilization_ratio", {}), 0.5);
  EXPECT_EQ(value_of(page, "poseidon_gpu_temperature_celsius", {}), 60.0);
  EXPECT_FALSE(has("poseidon_gpu_power_watts"));
  EXPECT_FALSE(has("poseidon_gpu_memory_bytes"));
}

}  // namespace
}  // namespace poseidon::gpu_monitor_test
