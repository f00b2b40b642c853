#include "worker/data/formats/dataset_identity.h"

#include <isa-l/crc64.h>

#include <algorithm>

#include "common/base/random.h"

namespace poseidon {

absl::StatusOr<DatasetIdentity> identity_of(const Dataset& dataset) {
  const std::int64_t size = dataset.size();
  const std::int64_t count = std::min(size, kIdentitySamples);
  std::uint64_t digest = mix_seed(static_cast<std::uint64_t>(size), 0);
  for (const std::int64_t extent : dataset.sample_shape()) {
    digest = mix_seed(digest, static_cast<std::uint64_t>(extent));
  }
  EncodedSample sample;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = count == 1 ? 0 : i * (size - 1) / (count - 1);
    if (const absl::Status read = dataset.read(index, sample); !read.ok()) {
      if (!is_unreadable(read)) return read;
      return DatasetIdentity{.samples = static_cast<std::uint64_t>(size), .digest = 0};
    }
    digest = mix_seed(digest, static_cast<std::uint64_t>(sample.label));
    digest = mix_seed(digest, sample.bytes.size());
    digest = mix_seed(digest, crc64_ecma_refl(0, sample.bytes.data(), sample.bytes.size()));
  }
  return DatasetIdentity{.samples = static_cast<std::uint64_t>(size),
                         .digest = std::max<std::uint64_t>(digest, 1)};
}

}  // namespace poseidon
