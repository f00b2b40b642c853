#include "worker/engine/cpu/vector_loops.h"

#include <vector>

#include "worker/engine/cpu/vector_loops_variants.h"

namespace poseidon {
namespace {

std::vector<const VectorLoops*> find_supported() {
  std::vector<const VectorLoops*> found = {&kBaselineVectorLoops};
#if defined(__x86_64__)
  // Asks also whether the operating system keeps the registers.
  if (__builtin_cpu_supports("avx2") != 0) found.push_back(&kAvx2VectorLoops);
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    found.push_back(&kAvx512VectorLoops);
  }
#endif
  return found;
}

}  // namespace

std::span<const VectorLoops* const> supported_vector_loops() {
  static const std::vector<const VectorLoops*> supported = find_supported();
  return supported;
}

const VectorLoops& vector_loops() {
  static const VectorLoops& best = *supported_vector_loops().back();
  return best;
}

}  // namespace poseidon
