#include "tests/twins/emulated_gpu/stream.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <utility>

#include "common/threads/mutex.h"
#include "tests/twins/emulated_gpu/grid.h"

namespace {

std::atomic<std::uint64_t> streams_made{0};

}  // namespace

namespace poseidon::emulated {

void Record::finish() {
  done_.store(1, std::memory_order_release);
  syscall(SYS_futex, &done_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Record::wait() const {
  static_assert(sizeof(done_) == sizeof(std::uint32_t), "a futex's word");
  while (!is_done()) syscall(SYS_futex, &done_, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
}

}  // namespace poseidon::emulated

CUstream_st::CUstream_st(int device)
    : device_(device),
      newest_(new Node),
      oldest_(newest_),
      random_(++streams_made * 0x9E3779B97F4A7C15ULL) {
  if (sem_init(&waiting_, /*pshared=*/0, 0) != 0) std::abort();
  thread_ = std::thread([this] { run(); });
}

CUstream_st::~CUstream_st() {
  push(nullptr);
  thread_.join();
  sem_destroy(&waiting_);
  delete oldest_;
}

void CUstream_st::push(std::function<void()> task) {
  auto* const node = new Node;
  node->task = std::move(task);
  {
    const poseidon::MutexLock lock(push_mutex_);
    newest_->next.store(node, std::memory_order_release);
    newest_ = node;
    pushed_.fetch_add(1, std::memory_order_relaxed);
  }
  sem_post(&waiting_);
}

void CUstream_st::run() {
  for (;;) {
    while (sem_wait(&waiting_) != 0 && errno == EINTR) {
    }
    Node* const node = oldest_->next.load(std::memory_order_acquire);
    delete std::exchange(oldest_, node);
    if (node->task == nullptr) return;
    // Sometimes behind the others, so that they are seen in more than one order.
    random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
    if (random_ >> 60 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    node->task();
    node->task = nullptr;
    finished_.fetch_add(1, std::memory_order_release);
  }
}

std::shared_ptr<poseidon::emulated::Record> CUstream_st::record() {
  auto record = std::make_shared<poseidon::emulated::Record>();
  push([record] {
    record->time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::steady_clock::now().time_since_epoch())
                          .count();
    record->finish();
  });
  return record;
}

bool CUstream_st::is_idle() const {
  return finished_.load(std::memory_order_acquire) == pushed_.load(std::memory_order_relaxed);
}

namespace poseidon::emulated {

cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  if (!is_usable(config.stream)) return told(cudaErrorInvalidResourceHandle);
  const dim3 grid = config.gridDim, block = config.blockDim;
  const bool is_flat = grid.y == 1 && grid.z == 1 && block.y == 1 && block.z == 1;
  if (!is_flat || grid.x == 0 || grid.x > 0x7FFFFFFFU || block.x == 0 ||
      block.x > kMaxBlockThreads || config.dynamicSmemBytes != 0 || config.numAttrs != 0) {
    return told(cudaErrorInvalidConfiguration);
  }
  config.stream->push([grid, block, thread = std::move(thread)] { run_grid(grid, block, thread); });
  return cudaSuccess;
}

}  // namespace poseidon::emulated
