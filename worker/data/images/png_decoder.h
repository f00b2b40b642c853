#pragma once

// The PNG half of image_decoder.h.
//
// Called by: image_decoder.h. Calls: libpng.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/images/image_decoder.h"

namespace poseidon {

/// Contract: ImageDecoder's. Always decodes the whole image: rows of a PNG build on each other.
class PngDecoder {
 public:
  absl::StatusOr<ImageSize> open(std::span<const std::uint8_t> bytes);
  absl::Status decode(const Region& region, std::int64_t channels, Image& image);

 private:
  std::span<const std::uint8_t> bytes_;
  ImageSize size_;
  std::vector<std::uint8_t> pixels_;  ///< scratch: one row, or the whole image when interlaced
};

}  // namespace poseidon
