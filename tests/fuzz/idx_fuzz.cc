// Data sets that are read whole: IDX, plain or gzip, and CIFAR. The first byte chooses.

#include "common/base/check.h"
#include "tests/fuzz/input.h"
#include "worker/data/formats/cifar.h"
#include "worker/data/formats/idx.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  fuzz::Input input(data, size);
  const std::uint8_t what = input.byte();
  if (what % 4 == 3) {
    const auto kind = static_cast<CifarKind>(what / 4 % 3);
    std::vector<std::uint8_t> pixels, labels;
    const bool ok = decode_cifar(input.rest(), "file", kind, 10, pixels, labels).ok();
    POSEIDON_CHECK(pixels.size() == labels.size() * 3072 && ok == !labels.empty(), "whole records");
    return 0;
  }
  const auto array = decode_idx(input.rest(), "file");
  if (!array.ok()) return 0;
  std::uint64_t elements = 1;
  for (const std::int64_t dimension : array->dimensions) {
    elements *= static_cast<std::uint64_t>(dimension);
  }
  POSEIDON_CHECK(elements == array->values.size(), "as many values as the shape says");
  return 0;
}
