#pragma once

// Decodes untrusted JPEG and PNG files to pixels.
//
// Called by: worker/data/feed/sample_reader.h, for encoded samples; transform.h follows. Calls:
// jpeg_decoder.h, png_decoder.h.
//
// The result equals that of Pillow's Image.open(...).convert("RGB") or .convert("L") bit for bit,
// except for 16-bit grey PNGs (Pillow clips them; this decoder takes the high byte):
//  - JPEG: the accurate integer DCT, smooth chroma upsampling; baseline and progressive; grey,
//    YCbCr, RGB, CMYK and YCCK (inverted, as Adobe stores them).
//  - PNG: any depth and colour type; of 16 bits the high byte; transparency is dropped, not
//    composed.
//  - EXIF orientation and colour profiles are ignored.
//
// Corrupt: no known signature, a header that is refused, an image without its end mark (a truncated
// file), damaged data in the decoded part. All of these are DATA_LOSS, the only error.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/images/image.h"

namespace poseidon {

/// Limits of what a file may declare; beyond them it counts as corrupt.
inline constexpr std::int64_t kMaxImageSide = 32768;
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{1} << 26;  ///< 64 Mi, e.g. 8192 x 8192
inline constexpr int kMaxJpegScans = 100;  ///< each costs a pass over the whole image

enum class ImageFormat { kUnknown, kJpeg, kPng };

/// By the first bytes; the file's name does not count. Pure.
ImageFormat image_format(std::span<const std::uint8_t> bytes);

struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool operator==(const ImageSize&) const = default;
};

/// Decodes one image after the other, with scratch memory that it keeps. One thread.
class ImageDecoder {
 public:
  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  ImageDecoder& operator=(ImageDecoder&&) noexcept;

  /// Reads the header. `bytes` is read until decode() is done or the next open().
  absl::StatusOr<ImageSize> open(std::span<const std::uint8_t> bytes);

  /// Decodes `region` of the image just opened, once, into `image` of `channels` 1 (grey) or 3
  /// (RGB). The pixels are those that the whole image would have there; the rest is skipped where
  /// that saves time.
  absl::Status decode(const Region& region, std::int64_t channels, Image& image);

  /// Whether decode() of the current image reads all of it for any region: damage then shows in
  /// every region or in none. Not a JPEG with a single scan.
  bool decodes_all() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace poseidon
