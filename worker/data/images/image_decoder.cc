#include "worker/data/images/image_decoder.h"

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/base/text.h"
#include "worker/data/images/jpeg_decoder.h"
#include "worker/data/images/png_decoder.h"

namespace poseidon {
namespace {

constexpr std::array<std::uint8_t, 8> kPngSignature = {0x89, 'P', 'N', 'G', 0x0D, 0x0A, 0x1A, 0x0A};
constexpr std::array<std::uint8_t, 3> kJpegSignature = {0xFF, 0xD8, 0xFF};

bool starts_with(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> signature) {
  return bytes.size() >= signature.size() &&
         std::equal(signature.begin(), signature.end(), bytes.begin());
}

}  // namespace

ImageFormat image_format(std::span<const std::uint8_t> bytes) {
  if (starts_with(bytes, kJpegSignature)) return ImageFormat::kJpeg;
  if (starts_with(bytes, kPngSignature)) return ImageFormat::kPng;
  return ImageFormat::kUnknown;
}

class ImageDecoder::Impl {
 public:
  absl::StatusOr<ImageSize> open(std::span<const std::uint8_t> bytes) {
    format_ = image_format(bytes);
    if (format_ == ImageFormat::kUnknown) {
      return absl::DataLossError(bytes.empty() ? "the file is empty" : "neither JPEG nor PNG");
    }
    const bool is_jpeg = format_ == ImageFormat::kJpeg;
    POSEIDON_ASSIGN_OR_RETURN(size_, is_jpeg ? jpeg_.open(bytes) : png_.open(bytes));
    if (size_.height < 1 || size_.width < 1 || size_.height > kMaxImageSide ||
        size_.width > kMaxImageSide || size_.height * size_.width > kMaxImagePixels) {
      return absl::DataLossError(str_cat("declares ", size_.height, "x", size_.width,
                                         " pixels; at most ", kMaxImageSide, " a side and ",
                                         kMaxImagePixels, " together are read"));
    }
    return size_;
  }

  absl::Status decode(const Region& region, std::int64_t channels, Image& image) {
    POSEIDON_CHECK(region.top >= 0 && region.left >= 0 && region.height >= 1 && region.width >= 1 &&
                       region.top + region.height <= size_.height &&
                       region.left + region.width <= size_.width,
                   "region outside the image");
    POSEIDON_CHECK(channels == 1 || channels == 3, "only grey and RGB");
    if (format_ == ImageFormat::kJpeg) return jpeg_.decode(region, channels, image);
    return png_.decode(region, channels, image);
  }

  bool decodes_all() const { return format_ == ImageFormat::kPng || jpeg_.decodes_all(); }

 private:
  ImageFormat format_ = ImageFormat::kUnknown;
  ImageSize size_;
  JpegDecoder jpeg_;
  PngDecoder png_;
};

ImageDecoder::ImageDecoder() : impl_(std::make_unique<Impl>()) {}
ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;
ImageDecoder& ImageDecoder::operator=(ImageDecoder&&) noexcept = default;

absl::StatusOr<ImageSize> ImageDecoder::open(std::span<const std::uint8_t> bytes) {
  return impl_->open(bytes);
}

absl::Status ImageDecoder::decode(const Region& region, std::int64_t channels, Image& image) {
  return impl_->decode(region, channels, image);
}

bool ImageDecoder::decodes_all() const { return impl_->decodes_all(); }

}  // namespace poseidon
