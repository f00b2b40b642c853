#pragma once

// The JPEG half of image_decoder.h.
//
// Called by: image_decoder.h. Calls: libjpeg-turbo.

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/images/image_decoder.h"

namespace poseidon {

/// Contract: ImageDecoder's.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  absl::StatusOr<ImageSize> open(std::span<const std::uint8_t> bytes);
  absl::Status decode(const Region& region, std::int64_t channels, Image& image);
  bool decodes_all() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace poseidon
