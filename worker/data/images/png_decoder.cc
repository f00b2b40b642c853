// As with libjpeg, errors jump; see jpeg_decoder.cc. A libpng reader serves one image.

#include "worker/data/images/png_decoder.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "common/base/text.h"
#include "worker/data/images/pixel_colour.h"

namespace poseidon {
namespace {

constexpr std::size_t kHeaderBytes = 8 + 25;  ///< signature and IHDR

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
         (std::uint32_t{bytes[2]} << 8) | bytes[3];
}

/// One libpng reader over bytes in memory.
class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : rest_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~Reader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  bool is_ready() const { return info_ != nullptr; }
  std::string message() const { return message_.data(); }

  /// Methods below hold the jumps: no objects with destructors inside.

  /// Reads up to the pixels and asks for 8 bits of grey or RGB. False: message() says why.
  bool begin() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT(*-err52-cpp)
    png_set_user_limits(png_, kMaxImageSide, kMaxImageSide);
    // Texts, colour profiles, suggested palettes and the like, known ones too (-1): no pixel
    // depends on them. libpng's own limit on their size only warns, and then allocates what they
    // claim.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_read_fn(png_, this, read);
    png_read_info(png_, info_);
    const int colour = png_get_color_type(png_, info_);
    if (png_get_bit_depth(png_, info_) == 16) png_set_strip_16(png_);
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if ((colour & PNG_COLOR_MASK_COLOR) == 0) png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_alpha(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    components_ = png_get_channels(png_, info_);
    return true;
  }
  int components() const { return components_; }
  bool is_interlaced() const { return passes_ > 1; }

  /// Next row; with an interlaced image call it for all rows, passes() times.
  bool read_row(std::uint8_t* row) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT(*-err52-cpp)
    png_read_row(png_, row, nullptr);
    return true;
  }
  int passes() const { return passes_; }

  /// Reads up to the end mark, which a truncated file lacks.
  bool finish() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT(*-err52-cpp)
    png_read_end(png_, nullptr);
    return true;
  }

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp text) {
    auto* self = static_cast<Reader*>(png_get_error_ptr(png));
    std::strncpy(self->message_.data(), text, self->message_.size() - 1);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  static void read(png_structp png, png_bytep out, png_size_t size) {
    auto* self = static_cast<Reader*>(png_get_io_ptr(png));
    if (size > self->rest_.size()) png_error(png, "the file is truncated");
    std::memcpy(out, self->rest_.data(), size);
    self->rest_ = self->rest_.subspan(size);
  }

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::span<const std::uint8_t> rest_;
  int components_ = 0;
  int passes_ = 1;
  std::array<char, 128> message_ = {};
};

absl::Status bad_png(const std::string& why) {
  return absl::DataLossError(str_cat("not a good PNG: ", why));
}

}  // namespace

absl::StatusOr<ImageSize> PngDecoder::open(std::span<const std::uint8_t> bytes) {
  bytes_ = bytes;
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data() + 12, "IHDR", 4) != 0) {
    return bad_png("it has no header");
  }
  size_ = {.height = big_endian(bytes.data() + 20), .width = big_endian(bytes.data() + 16)};
  return size_;
}

absl::Status PngDecoder::decode(const Region& region, std::int64_t channels, Image& image) {
  Reader reader(bytes_);
  if (!reader.is_ready()) return absl::ResourceExhaustedError("no memory for libpng");
  if (!reader.begin()) return bad_png(reader.message());
  image.reshape(channels, region.height, region.width);
  const std::int64_t components = reader.components();
  const std::int64_t row_bytes = size_.width * components;
  // An interlaced image comes in passes, each of which adds pixels to all rows.
  const std::int64_t kept_rows = reader.is_interlaced() ? size_.height : 1;
  const auto bytes = static_cast<std::size_t>(kept_rows * row_bytes);
  give_back_much(pixels_, bytes);
  pixels_.resize(bytes);
  for (int pass = 0; pass < reader.passes(); ++pass) {
    const bool is_last = pass + 1 == reader.passes();
    for (std::int64_t y = 0; y < size_.height; ++y) {
      std::uint8_t* row = pixels_.data() + (kept_rows == 1 ? 0 : y * row_bytes);
      if (!reader.read_row(row)) return bad_png(reader.message());
      const std::int64_t row_out = y - region.top;
      if (!is_last || row_out < 0 || row_out >= region.height) continue;
      convert_row(row + region.left * components, components, region.width, image.row(row_out),
                  channels);
    }
  }
  if (!reader.finish()) return bad_png(reader.message());
  return absl::OkStatus();
}

}  // namespace poseidon
