#include "tests/twins/emulated_gpu/grid.h"

#include <csetjmp>

#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POSEIDON_ASAN
#endif
#if __has_feature(thread_sanitizer)
#define POSEIDON_TSAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define POSEIDON_ASAN
#endif
#if defined(__SANITIZE_THREAD__)
#define POSEIDON_TSAN
#endif
#ifdef POSEIDON_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef POSEIDON_TSAN
#include <sanitizer/tsan_interface.h>
#define POSEIDON_NO_TSAN __attribute__((no_sanitize("thread")))
#else
#define POSEIDON_NO_TSAN
#endif

namespace poseidon::emulated {

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
thread_local uint3 threadIdx{}, blockIdx{};
thread_local dim3 blockDim{}, gridDim{};
// NOLINTEND(readability-identifier-naming)

namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr unsigned kMaxWarps = kMaxBlockThreads / kWarpThreads;
#ifdef POSEIDON_TSAN
constexpr bool kOwnFiberEach = true;
#else
constexpr bool kOwnFiberEach = false;
#endif

[[noreturn]] void stop(const char* why) {
  std::fprintf(stderr, "emulated GPU: %s (block %u of %u, of %u threads)\n", why, blockIdx.x,
               gridDim.x, blockDim.x);
  std::abort();
}

/// A stack that threads of a kernel run on: one after the other, as long as none waits.
struct Fiber {
  ucontext_t context{};
  std::jmp_buf jump{};
  bool has_begun = false;
  void* stack = nullptr;
  unsigned thread = 0;  ///< that runs on it now
#ifdef POSEIDON_ASAN
  void* fake_stack = nullptr;
  const void* bottom = nullptr;  ///< of the stack, whoever made it
  std::size_t bytes = 0;
#endif
#ifdef POSEIDON_TSAN
  void* sanitizer = nullptr;
#endif
};

#ifdef POSEIDON_TSAN
void swap(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
#else
#ifdef POSEIDON_ASAN
/// The C library's own: the sanitizer's takes a jump for one within its stack. Not [[noreturn]],
/// though it is: before a call of what does not return the sanitizer forgets all that it knows of
/// the stack, with a call of the kernel. (Of swapcontext() it does so on both sides.)
void jump_to(std::jmp_buf& place) {
  using Jump = void (*)(std::jmp_buf, int);
  static const auto jump =
      reinterpret_cast<Jump>(dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "_longjmp"));
  if (jump == nullptr) stop("no _longjmp in libc.so.6");
  jump(place, 1);
}
#else
[[noreturn]] void jump_to(std::jmp_buf& place) { _longjmp(place, 1); }
#endif
/// Without the two calls of the kernel by which swapcontext() keeps signal masks.
void swap(Fiber& from, Fiber& to) {
  from.has_begun = true;
  if (_setjmp(from.jump) != 0) return;
  if (!to.has_begun) setcontext(&to.context);
  jump_to(to.jump);
}
#endif

/// One of each host thread that runs kernels. What it knows is for its own fibers, which never run
/// at the same time: ThreadSanitizer shall not see it (plain arrays, since what is inlined from a
/// container would be seen).
class Executor {
 public:
#ifdef POSEIDON_TSAN
  Executor() { scheduler_.sanitizer = __tsan_get_current_fiber(); }
#else
  Executor() = default;
#endif
  ~Executor() {
    for (unsigned i = 0; i < made_; ++i) {
#ifdef POSEIDON_TSAN
      __tsan_destroy_fiber(fibers_[i].sanitizer);
#endif
      munmap(fibers_[i].stack, kStackBytes);
    }
  }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  POSEIDON_NO_TSAN void run(const dim3& grid, const dim3& block,
                            const std::function<void()>& thread);
  POSEIDON_NO_TSAN bool barrier_and(bool predicate);
  POSEIDON_NO_TSAN std::uint64_t shuffle_down(unsigned mask, std::uint64_t bits, unsigned offset);

 private:
  struct Warp {
    unsigned arrived = 0, round = 0;
    Fiber* waiting[kWarpThreads];
    std::uint64_t given[2][kWarpThreads];  ///< of this round and the one before
  };

  POSEIDON_NO_TSAN void run_block();
  POSEIDON_NO_TSAN void fiber_loop(Fiber& self);
  POSEIDON_NO_TSAN Fiber& idle_fiber();
  POSEIDON_NO_TSAN void go(Fiber& from, Fiber& to);
  POSEIDON_NO_TSAN void wait(Fiber& self) { go(self, scheduler_); }
  POSEIDON_NO_TSAN void place(const Fiber& fiber) { threadIdx = {fiber.thread, 0, 0}; }
  static void begin_with(ucontext_t* context, void* stack, unsigned number);
  static void fiber_main(unsigned number);
  static void acquire(void* at);
  static void release(void* at);

  const std::function<void()>* thread_ = nullptr;
  unsigned threads_ = 0, next_ = 0, done_ = 0;
  bool backwards_ = false;
  Fiber scheduler_;
  Fiber* current_ = nullptr;
  Fiber fibers_[kMaxBlockThreads];
  unsigned made_ = 0;
  Fiber* idle_[kMaxBlockThreads];
  unsigned idle_count_ = 0;
  Fiber* ready_[kMaxBlockThreads];
  unsigned ready_count_ = 0;
  Fiber* at_barrier_[kMaxBlockThreads];
  unsigned at_barrier_count_ = 0, barrier_round_ = 0;
  bool all_[2] = {true, true};
  Warp warps_[kMaxWarps];
  char begin_ = 0, end_ = 0;  ///< of a launch; only their addresses matter
};

Executor& executor() {
  thread_local const std::unique_ptr<Executor> own = std::make_unique<Executor>();
  return *own;
}

void Executor::acquire([[maybe_unused]] void* at) {
#ifdef POSEIDON_TSAN
  __tsan_acquire(at);
#endif
}
void Executor::release([[maybe_unused]] void* at) {
#ifdef POSEIDON_TSAN
  __tsan_release(at);
#endif
}

void Executor::fiber_main(unsigned number) {
  Executor& self = executor();
#ifdef POSEIDON_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &self.scheduler_.bottom, &self.scheduler_.bytes);
#endif
  self.fiber_loop(self.fibers_[number]);
}

void Executor::fiber_loop(Fiber& self) {
  for (;;) {
    while (next_ < threads_) {
      self.thread = backwards_ ? threads_ - 1 - next_ : next_;
      ++next_;
      place(self);
      acquire(&begin_);
      (*thread_)();
      release(&end_);
      ++done_;
      if (kOwnFiberEach) break;
    }
    idle_[idle_count_++] = &self;
    wait(self);
  }
}

Fiber& Executor::idle_fiber() {
  if (idle_count_ > 0) return *idle_[--idle_count_];
  Fiber& made = fibers_[made_];
  made.stack =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made.stack == MAP_FAILED) stop("no memory for the stack of a thread");
#ifdef POSEIDON_ASAN
  made.bottom = made.stack;
  made.bytes = kStackBytes;
#endif
#ifdef POSEIDON_TSAN
  made.sanitizer = __tsan_create_fiber(0);
#endif
  begin_with(&made.context, made.stack, made_);
  return fibers_[made_++];
}

/// The context will begin in fiber_main(number).
void Executor::begin_with(ucontext_t* context, void* stack, unsigned number) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, reinterpret_cast<void (*)()>(fiber_main), 1, number);
}

void Executor::go(Fiber& from, Fiber& to) {
  current_ = &to;
  place(to);
#ifdef POSEIDON_TSAN
  __tsan_switch_to_fiber(to.sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef POSEIDON_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.bytes);
#endif
  swap(from, to);
#ifdef POSEIDON_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void Executor::run_block() {
  next_ = done_ = 0;
  while (done_ < threads_) {
    if (ready_count_ > 0) {
      go(scheduler_, *ready_[--ready_count_]);
    } else if (next_ < threads_) {
      go(scheduler_, idle_fiber());
    } else {
      stop("some threads wait for others, which have ended or wait for something else");
    }
  }
}

void Executor::run(const dim3& grid, const dim3& block, const std::function<void()>& thread) {
  thread_ = &thread;
  threads_ = block.x;
  blockDim = block;
  gridDim = grid;
  static std::atomic<unsigned> launches{0};
  backwards_ = launches.fetch_add(1, std::memory_order_relaxed) % 2 == 1;
  release(&begin_);
  for (unsigned i = 0; i < grid.x; ++i) {
    blockIdx = {backwards_ ? grid.x - 1 - i : i, 0, 0};
    run_block();
  }
  acquire(&end_);
  thread_ = nullptr;
}

bool Executor::barrier_and(bool predicate) {
  Fiber& self = *current_;
  const unsigned round = barrier_round_ % 2;
  all_[round] = all_[round] && predicate;
  release(&all_[round]);
  if (at_barrier_count_ + 1 < threads_) {
    at_barrier_[at_barrier_count_++] = &self;
    wait(self);
  } else {
    for (unsigned i = 0; i < at_barrier_count_; ++i) ready_[ready_count_++] = at_barrier_[i];
    at_barrier_count_ = 0;
    ++barrier_round_;
    all_[barrier_round_ % 2] = true;  // all have read it: they are at this barrier
  }
  acquire(&all_[round]);
  return all_[round];
}

std::uint64_t Executor::shuffle_down(unsigned mask, std::uint64_t bits, unsigned offset) {
  if (mask != 0xFFFFFFFFU) stop("a shuffle of a part of a warp, which is not emulated");
  if (threads_ % kWarpThreads != 0) stop("a shuffle in a block that is not whole warps");
  Fiber& self = *current_;
  const unsigned lane = self.thread % kWarpThreads;
  Warp& warp = warps_[self.thread / kWarpThreads];
  const unsigned round = warp.round % 2;
  warp.given[round][lane] = bits;
  release(&warp);
  if (warp.arrived + 1 < kWarpThreads) {
    warp.waiting[warp.arrived++] = &self;
    wait(self);
  } else {
    for (unsigned i = 0; i < warp.arrived; ++i) ready_[ready_count_++] = warp.waiting[i];
    warp.arrived = 0;
    ++warp.round;
  }
  acquire(&warp);
  return lane + offset < kWarpThreads ? warp.given[round][lane + offset] : bits;
}

}  // namespace

void run_grid(const dim3& grid, const dim3& block, const std::function<void()>& thread) {
  executor().run(grid, block, thread);
}

void barrier() { static_cast<void>(executor().barrier_and(true)); }
bool barrier_and(bool predicate) { return executor().barrier_and(predicate); }
std::uint64_t shuffle_down(unsigned mask, std::uint64_t bits, unsigned offset) {
  return executor().shuffle_down(mask, bits, offset);
}

}  // namespace poseidon::emulated
