#include "common/tensor/kernels.h"

#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "common/tensor/kernels_variants.h"

namespace poseidon {

namespace {

std::vector<const Kernels*> find_supported() {
  std::vector<const Kernels*> found = {&kBaselineKernels};
#if defined(__x86_64__)
  // __builtin_cpu_supports also asks whether the operating system keeps the registers; F16C, which
  // not every compiler lets it be asked for, needs those of AVX2.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (f16c && __builtin_cpu_supports("avx2") != 0) {
    found.push_back(&kAvx2Kernels);
    if (__builtin_cpu_supports("avx512f") != 0) {
      static const Kernels avx512 = with_avx512(kAvx2Kernels);
      found.push_back(&avx512);
    }
  }
#endif
  return found;
}

}  // namespace

std::span<const Kernels* const> supported_kernels() {
  static const std::vector<const Kernels*> supported = find_supported();
  return supported;
}

const Kernels& kernels() {
  static const Kernels& best = *supported_kernels().back();
  return best;
}

}  // namespace poseidon
