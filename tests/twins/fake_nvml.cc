// NVIDIA's management library as gpu_monitor_test.cc wants it: one GPU, at 0000:3b:00.0, which can
// be told to fail.
// Not linked: loaded by its file's name, as the real one.

#include <cstdint>
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming): NVML's names
extern "C" {

// What the test sets, and looks at.
std::int32_t fake_nvml_initialised = 0;
std::int32_t fake_nvml_init_code = 0;
std::int32_t fake_nvml_read_code = 0;   // of everything but power
std::int32_t fake_nvml_power_code = 0;  // 3: NVML_ERROR_NOT_SUPPORTED

int nvmlInit_v2() {
  if (fake_nvml_init_code == 0) ++fake_nvml_initialised;
  return fake_nvml_init_code;
}
int nvmlShutdown() {
  --fake_nvml_initialised;
  return 0;
}
const char* nvmlErrorString(int code) {
  return code == 2 ? "Invalid Argument" : "Driver Not Loaded";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  if (std::strcmp(id, "0000:3b:00.0") != 0) return 2;
  *device = &fake_nvml_initialised;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* /*device*/, unsigned long long* total_free_used) {
  total_free_used[0] = 80ULL << 30;
  total_free_used[1] = 70ULL << 30;
  total_free_used[2] = 10ULL << 30;
  return fake_nvml_read_code;
}
int nvmlDeviceGetUtilizationRates(void* /*device*/, unsigned* gpu_memory) {
  gpu_memory[0] = 97;
  gpu_memory[1] = 31;
  return fake_nvml_read_code;
}
int nvmlDeviceGetPowerUsage(void* /*device*/, unsigned* milliwatts) {
  *milliwatts = 412500;
  return fake_nvml_power_code;
}
int nvmlDeviceGetTemperature(void* /*device*/, int sensor, unsigned* celsius) {
  *celsius = sensor == 0 ? 61 : 0;
  return fake_nvml_read_code;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
