#pragma once

// Streams and events of the emulated GPU. Each stream is a thread that works in order, at its own
// pace. Only the code under test synchronises streams, events and the host. An ordering that it
// forgets is a race, which ThreadSanitizer reports and other builds run in several orders.

#include <cuda_runtime_api.h>
#include <semaphore.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "common/threads/mutex.h"

namespace poseidon::emulated {

/// One record of an event: done once the stream has come to it. By the kernel's own calls: the
/// standard library's waits give the processor away a dozen times before they sleep, which beside
/// other processes costs a time slice each; and a lock would order who waits before who finishes.
class Record {
 public:
  bool is_done() const { return done_.load(std::memory_order_acquire) != 0; }
  void finish();
  void wait() const;

  std::int64_t time_ns = 0;  ///< once done

 private:
  std::atomic<std::uint32_t> done_{0};
};

}  // namespace poseidon::emulated

struct CUstream_st {
  explicit CUstream_st(int device);
  /// After all that is queued.
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  void push(std::function<void()> task);
  std::shared_ptr<poseidon::emulated::Record> record();
  bool is_idle() const;
  int device() const { return device_; }

 private:
  struct Node {
    std::function<void()> task;
    std::atomic<Node*> next{nullptr};
  };
  void run();

  const int device_;
  // The thread only takes: it tells those who push nothing of how far it is, lest that order what
  // nobody has asked to be ordered.
  poseidon::Mutex push_mutex_;
  Node* newest_ ABSL_GUARDED_BY(push_mutex_);
  Node* oldest_;   ///< the thread's; done, or the first of all
  sem_t waiting_;  ///< POSIX's, as for Record
  std::atomic<std::uint64_t> pushed_{0}, finished_{0};
  std::uint64_t random_;
  std::thread thread_;
};

struct CUevent_st {
  poseidon::Mutex mutex;
  std::shared_ptr<poseidon::emulated::Record> last
      ABSL_GUARDED_BY(mutex);  ///< null: never recorded
  bool times = true;
  int device = 0;
};

namespace poseidon::emulated {

inline constexpr int kDevices = 2;
/// The GPU that the thread's calls are about. One that has chosen none gets the first, as with the
/// real runtime, which then opens a context there: poseidon_emulated_stray_calls counts these.
int current_device();
/// Of the thread's GPU, and not the default stream.
bool is_usable(cudaStream_t stream);
/// A call that belongs to setting up, by its name: it allocates, frees, or waits for the GPU. For
/// poseidon_emulated_setup_calls.
void count_setup(const char* call);
/// Keeps it as the thread's last error, as the runtime does.
cudaError_t told(cudaError_t error);
/// Like cudaLaunchKernelExC.
cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread);
/// Whether all of it lies in one allocation of the memory of the thread's GPU.
bool is_device_memory(const void* memory, std::size_t bytes);
/// What a library does to its workspace, whatever was in it: its beginning and its end are lost.
void spoil(void* workspace, std::size_t bytes);

}  // namespace poseidon::emulated
