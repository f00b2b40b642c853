// Tests that the emulated GPU detects the faults that it should.

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern "C" {
const char* poseidon_emulated_setup_calls();
unsigned long poseidon_emulated_stray_calls();
unsigned long poseidon_emulated_pageable_copies();
}

namespace poseidon::emulated_gpu_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr unsigned kThreads = 64;

/// Sums of neighbours through shared memory.
__global__ void neighbours_kernel(bool with_barrier, const int* in, int* out) {
  __shared__ int values[kThreads];
  values[threadIdx.x] = in[threadIdx.x];
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = values[threadIdx.x] + values[(threadIdx.x + 1) % kThreads];
  __syncthreads();
  values[threadIdx.x] = -1000;
}

__global__ void warp_sum_kernel(const double* in, double* out) {
  double value = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xFFFFFFFFu, value, offset);
  }
  if (threadIdx.x % 32 == 0) out[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = value;
}

__global__ void all_kernel(const int* in, int* out) {
  for (int round = 0; round < 4; ++round) {
    const int all = __syncthreads_and(in[threadIdx.x] > round);
    if (threadIdx.x == 0) out[round] = all;
  }
}

__global__ void half_a_barrier_kernel() {
  if (threadIdx.x < 7) __syncthreads();
}

__global__ void set_kernel(int* at, int value) { *at = value; }

class EmulatedGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other_), cudaSuccess);
    for (void* memory : allocated_) EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }

  template <typename Value>
  Value* allocate(std::size_t count) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, count * sizeof(Value)), cudaSuccess);
    allocated_.push_back(memory);
    return static_cast<Value*>(memory);
  }
  template <typename Value>
  Value* upload(const std::vector<Value>& values) {
    Value* const device = allocate<Value>(values.size());
    EXPECT_EQ(cudaMemcpyAsync(device, values.data(), values.size() * sizeof(Value),
                              cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    return device;
  }
  /// To memory that is not pinned: it is there when the call returns.
  template <typename Value>
  std::vector<Value> download(const Value* device, std::size_t count) {
    std::vector<Value> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), device, count * sizeof(Value), cudaMemcpyDeviceToHost,
                              stream_),
              cudaSuccess);
    return values;
  }
  template <typename... Parameters, typename... Arguments>
  cudaError_t launch(unsigned blocks, unsigned threads, void (*kernel)(Parameters...),
                     Arguments... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = stream_;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
  }

  static std::vector<int> numbers() {
    std::vector<int> values(kThreads);
    std::iota(values.begin(), values.end(), 0);
    return values;
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  std::vector<void*> allocated_;
};

/// Neighbours' sums of 0 to kThreads - 1.
std::vector<int> sums_of_neighbours() {
  std::vector<int> sums;
  for (int i = 0; i < static_cast<int>(kThreads); ++i) {
    sums.push_back(i + (i + 1) % static_cast<int>(kThreads));
  }
  return sums;
}

TEST_F(EmulatedGpuTest, BarriersTie) {
  const int* const device_in = upload(numbers());
  int* const out = allocate<int>(kThreads);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(launch(1, kThreads, neighbours_kernel, true, device_in, out), cudaSuccess);
    EXPECT_EQ(download(out, kThreads), sums_of_neighbours());
  }
}

#if defined(__SANITIZE_THREAD__)
// A process in which ThreadSanitizer has reported something ends with this status.
constexpr int kRace = 66;

/// Tells the host, without ordering anything with it. No kernel is given the host's memory.
std::atomic<bool> is_set{false};
__global__ void set_and_tell_kernel(int* at, int value) {
  *at = value;
  is_set.store(true, std::memory_order_relaxed);
}

using EmulatedGpuRaceTest = EmulatedGpuTest;

TEST_F(EmulatedGpuRaceTest, AMissingBarrierIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const int* const device_in = upload(numbers());
        int* const out = allocate<int>(kThreads);
        launch(1, kThreads, neighbours_kernel, false, device_in, out);
        download(out, kThreads);
        std::exit(0);
      },
      ::testing::ExitedWithCode(kRace), "data race.*");
}

TEST_F(EmulatedGpuRaceTest, AStreamThatDoesNotWaitIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        int* const number = allocate<int>(1);
        if (launch(1, 1, set_and_tell_kernel, number, 1) != cudaSuccess) std::exit(1);
        // A stream that begins late has seen all that the host did until then: this one has begun.
        while (!is_set.load(std::memory_order_relaxed)) std::this_thread::yield();
        cudaMemsetAsync(number, 0, sizeof(int), other_);
        cudaStreamDestroy(other_);
        download(number, 1);
        std::exit(0);
      },
      ::testing::ExitedWithCode(kRace), "data race.*");
}
#else
TEST_F(EmulatedGpuTest, AMissingBarrierShows) {
  const std::vector<int> wanted = sums_of_neighbours();
  const int* const device_in = upload(numbers());
  int* const out = allocate<int>(kThreads);
  int wrong = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(launch(1, kThreads, neighbours_kernel, false, device_in, out), cudaSuccess);
    if (download(out, kThreads) != wanted) ++wrong;
  }
  EXPECT_GE(wrong, 3);
}
#endif

TEST_F(EmulatedGpuTest, WarpsShuffle) {
  std::vector<double> in(6 * 64);
  std::iota(in.begin(), in.end(), 0.0);
  const double* const device_in = upload(in);
  double* const out = allocate<double>(12);
  ASSERT_EQ(launch(6, 64, warp_sum_kernel, device_in, out), cudaSuccess);
  const std::vector<double> sums = download(out, 12);
  for (int warp = 0; warp < 12; ++warp) EXPECT_EQ(sums[warp], 32 * 32 * warp + 31 * 16) << warp;
}

TEST_F(EmulatedGpuTest, BarriersCompare) {
  std::vector<int> in(kThreads, 9);
  in[17] = 2;
  const int* const device_in = upload(in);
  int* const out = allocate<int>(4);
  ASSERT_EQ(launch(1, kThreads, all_kernel, device_in, out), cudaSuccess);
  EXPECT_THAT(download(out, 4), ElementsAre(1, 1, 0, 0));
}

using EmulatedGpuDeathTest = EmulatedGpuTest;

TEST_F(EmulatedGpuDeathTest, ABarrierThatSomeNeverReachIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        launch(1, kThreads, half_a_barrier_kernel);
        cudaStreamDestroy(stream_);
      },
      "some threads wait for others");
}

TEST_F(EmulatedGpuTest, StreamsWaitForEventsAlone) {
  int* const number = allocate<int>(1);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "never recorded";
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(launch(1, 1, set_kernel, number, i), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(other_, event, cudaEventWaitDefault), cudaSuccess);
    std::array<int, 1> host{};
    ASSERT_EQ(cudaMemcpyAsync(host.data(), number, sizeof(int), cudaMemcpyDeviceToHost, other_),
              cudaSuccess);
    EXPECT_EQ(host[0], i);
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(EmulatedGpuTest, NotReadyIsKeptAsTheLastError) {
  int* const number = allocate<int>(1);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  std::atomic<bool> asked{false};
  stream_->push([&] { asked.wait(false); });
  EXPECT_EQ(launch(1, 1, set_kernel, number, 1), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  asked = true;
  asked.notify_all();
  EXPECT_THAT(download(number, 1), ElementsAre(1));
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(EmulatedGpuTest, CopiesFromOrdinaryMemoryAreTakenAtOnce) {
  stream_->push([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  std::vector<int> values = {1, 2, 3};
  const int* const device = upload(values);
  values.assign(3, 0);
  EXPECT_THAT(download(device, 3), ElementsAre(1, 2, 3));
}

TEST_F(EmulatedGpuTest, CopiesFromPinnedMemoryAreNot) {
  std::vector<int> values = {1, 2, 3};
  int* const device = allocate<int>(3);
  ASSERT_EQ(cudaHostRegister(values.data(), 3 * sizeof(int), cudaHostRegisterPortable),
            cudaSuccess);
  EXPECT_EQ(cudaHostRegister(values.data() + 1, sizeof(int), cudaHostRegisterPortable),
            cudaErrorHostMemoryAlreadyRegistered);
  std::atomic<bool> changed{false};
  stream_->push([&] { changed.wait(false); });
  ASSERT_EQ(
      cudaMemcpyAsync(device, values.data(), 3 * sizeof(int), cudaMemcpyHostToDevice, stream_),
      cudaSuccess);
  values.assign(3, 7);
  changed = true;
  changed.notify_all();
  EXPECT_THAT(download(device, 3), Each(7));
  EXPECT_EQ(cudaHostUnregister(values.data()), cudaSuccess);
}

TEST_F(EmulatedGpuTest, MemoryOfTheWrongSideIsRefused) {
  std::array<float, 4> host{};
  auto* const device = allocate<float>(4);
  const auto copy = [&](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream_);
  };
  EXPECT_EQ(copy(host.data(), device, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device, host.data(), 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device, host.data(), 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device, device + 2, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue)
      << "beyond the allocation";
  EXPECT_EQ(copy(device, host.data(), 16, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(device, host.data(), 16, cudaMemcpyHostToDevice, nullptr),
            cudaErrorInvalidResourceHandle)
      << "the default stream";
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 16, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(launch(1, 2048, set_kernel, nullptr, 1), cudaErrorInvalidConfiguration);
  int on_the_host = 0;
  EXPECT_EQ(launch(1, 1, set_kernel, &on_the_host, 1), cudaErrorIllegalAddress);
}

TEST_F(EmulatedGpuTest, MemoryThatIsPinnedInPartIsRefused) {
  std::array<float, 4> host{};
  auto* const device = allocate<float>(4);
  ASSERT_EQ(cudaHostRegister(host.data(), 8, cudaHostRegisterPortable), cudaSuccess);
  const auto upload = [&](std::size_t first, std::size_t bytes) {
    return cudaMemcpyAsync(device, host.data() + first, bytes, cudaMemcpyHostToDevice, stream_);
  };
  EXPECT_EQ(upload(0, 8), cudaSuccess);
  EXPECT_THAT(download(device, 2), Each(0)) << "nothing is under way from the stack any more";
  EXPECT_EQ(upload(1, 12), cudaErrorInvalidValue);
  const unsigned long pageable = poseidon_emulated_pageable_copies();
  EXPECT_EQ(upload(2, 8), cudaSuccess);
  EXPECT_EQ(poseidon_emulated_pageable_copies(), pageable + 1);
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  EXPECT_EQ(poseidon_emulated_pageable_copies(), pageable + 1);
}

TEST_F(EmulatedGpuTest, EachGpuHasItsMemoryAndItsStreams) {
  int* const first = allocate<int>(1);
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  std::thread([&] {
    const unsigned long strays = poseidon_emulated_stray_calls();
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    EXPECT_EQ(launch(1, 1, set_kernel, nullptr, 1), cudaErrorInvalidResourceHandle)
        << "the first GPU's stream";
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(first, 0, sizeof(int), stream), cudaErrorInvalidValue)
        << "the first GPU's memory";
    int* const second = allocate<int>(1);
    EXPECT_EQ(cudaMemsetAsync(second, 0, sizeof(int), stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(poseidon_emulated_stray_calls(), strays);
  }).join();
  std::thread([&] {
    const unsigned long strays = poseidon_emulated_stray_calls();
    cudaEventQuery(nullptr);
    EXPECT_EQ(poseidon_emulated_stray_calls(), strays + 1) << "it has chosen no GPU";
  }).join();
  cudaMemsetAsync(first, 0, sizeof(int), stream_);
}

TEST_F(EmulatedGpuTest, CallsThatSetUpAreCounted) {
  const std::string before = poseidon_emulated_setup_calls();
  cudaMemsetAsync(allocate<int>(1), 0, sizeof(int), stream_);
  const std::string after = poseidon_emulated_setup_calls();
  EXPECT_NE(after, before);
  EXPECT_THAT(after, ::testing::HasSubstr("cudaMalloc "));
  EXPECT_EQ(poseidon_emulated_setup_calls(), after);
}

TEST_F(EmulatedGpuTest, FreshMemoryIsNoNumber) {
  for (const float value : download(allocate<float>(8), 8)) EXPECT_NE(value, value);
}

}  // namespace
}  // namespace poseidon::emulated_gpu_test
