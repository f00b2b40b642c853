// A safetensors file: header, and the values of every tensor that can be made float32.

#include "common/base/check.h"
#include "common/files/safetensors.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  const std::string_view file = fuzz::Input(data, size).rest();
  if (size < kSafetensorsLengthBytes) return 0;
  const auto header_bytes =
      safetensors_header_bytes(file.substr(0, kSafetensorsLengthBytes), size, "file");
  if (!header_bytes.ok()) return 0;
  POSEIDON_CHECK(*header_bytes <= size, "the header is part of the file");
  const auto header = parse_safetensors_header(file.substr(0, *header_bytes), size, "file");
  if (!header.ok()) return 0;
  for (const StoredTensor& tensor : header->tensors) {
    POSEIDON_CHECK(tensor.offset_bytes <= size && tensor.size_bytes <= size - tensor.offset_bytes,
                   "a tensor is part of the file");
    if (!is_floating_dtype(tensor.dtype)) continue;
    std::vector<float> values(tensor.elements);
    decode_values(tensor.dtype, file.substr(tensor.offset_bytes, tensor.size_bytes), values);
  }
  return 0;
}
