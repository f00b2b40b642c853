// libjpeg reports errors by a callback that must not return: ours jumps back to the method that
// called the library. Between setjmp and the jump there are only the library's own frames and
// trivial objects, so no destructor is skipped.

#include "worker/data/images/jpeg_decoder.h"

#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it before

#include <jpeglib.h>

#include <jerror.h>  // its codes depend on jpeglib.h

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/text.h"
#include "worker/data/images/pixel_colour.h"

namespace poseidon {
namespace {

/// Columns decoded beside the region: smooth upsampling looks at the neighbouring chroma sample and
/// treats the edge of the decoded columns as the edge of the image. The widest sample is 4 pixels.
constexpr std::int64_t kColumnMargin = 16;

struct ErrorManager {
  jpeg_error_mgr base;  ///< first: the library hands it back as this
  std::jmp_buf jump;
  std::array<char, JMSG_LENGTH_MAX> message;
  bool is_damaged;  ///< a warning that means wrong pixels came
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* manager = reinterpret_cast<ErrorManager*>(info->err);
  info->err->format_message(info, manager->message.data());
  std::longjmp(manager->jump, 1);
}

/// A scan that does not continue what came before it refines bits that are not there: wrong pixels.
/// Higher coefficients before the mean (DC) are only out of order: it all adds up to the same. The
/// warning's second number is the coefficient.
bool is_bogus_progression(const jpeg_decompress_struct& info) {
  return info.Ss == 0 || info.err->msg_parm.i[1] != 0;
}

/// Level -1: a warning. Some are harmless (bytes between segments, an odd Adobe marker).
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  auto* manager = reinterpret_cast<ErrorManager*>(info->err);
  ++info->err->num_warnings;
  switch (info->err->msg_code) {
    case JWRN_BOGUS_PROGRESSION:
      if (!is_bogus_progression(*reinterpret_cast<j_decompress_ptr>(info))) return;
      [[fallthrough]];
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
      if (manager->is_damaged) return;
      manager->is_damaged = true;
      info->err->format_message(info, manager->message.data());
      return;
    default:
      return;
  }
}

void ignore_output(j_common_ptr) {}

void watch_scans(j_common_ptr info) {
  if (!info->is_decompressor) return;
  auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number <= kMaxJpegScans) return;
  auto* manager = reinterpret_cast<ErrorManager*>(info->err);
  std::snprintf(manager->message.data(), manager->message.size(), "more than %d scans",
                kMaxJpegScans);
  std::longjmp(manager->jump, 1);
}

/// Whether an end-of-image marker follows. Entropy-coded data never contain one.
bool has_end(const std::uint8_t* begin, std::size_t size) {
  for (std::size_t i = size; i >= 2; --i) {
    if (begin[i - 1] == 0xD9 && begin[i - 2] == 0xFF) return true;
  }
  return false;
}

}  // namespace

class JpegDecoder::Impl {
 public:
  Impl() {
    info_.err = jpeg_std_error(&error_.base);
    error_.base.error_exit = on_error;
    error_.base.emit_message = on_message;
    error_.base.output_message = ignore_output;
    // Fails only for a library of another version than its header, or without memory.
    const bool is_created = create();
    POSEIDON_CHECK(is_created, error_.message.data());
    progress_.progress_monitor = watch_scans;
    info_.progress = &progress_;
  }
  ~Impl() { jpeg_destroy_decompress(&info_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::StatusOr<ImageSize> open(std::span<const std::uint8_t> bytes) {
    jpeg_abort_decompress(&info_);
    error_.is_damaged = false;
    if (!read_header(bytes)) return failure();
    const ImageSize size{.height = info_.image_height, .width = info_.image_width};
    const std::size_t data_bytes = info_.src->bytes_in_buffer;
    if (!has_end(info_.src->next_input_byte, data_bytes)) {
      return absl::DataLossError("the JPEG is truncated: it has no end marker");
    }
    return size;
  }

  absl::Status decode(const Region& region, std::int64_t channels, Image& image) {
    image.reshape(channels, region.height, region.width);
    row_.resize(static_cast<std::size_t>(info_.image_width) * 4);
    const bool is_done = decode_rows(region, image);
    jpeg_abort_decompress(&info_);
    if (!is_done || error_.is_damaged) return failure();
    return absl::OkStatus();
  }

  /// Several scans are all read before the first row comes out.
  bool decodes_all() const { return has_several_scans_; }

 private:
  absl::Status failure() const {
    return absl::DataLossError(str_cat("not a good JPEG: ", std::string(error_.message.data())));
  }

  // The four methods below hold the jumps. They create no object with a destructor.

  bool create() {
    if (setjmp(error_.jump) != 0) return false;  // NOLINT(*-err52-cpp)
    jpeg_create_decompress(&info_);
    return true;
  }

  bool read_header(std::span<const std::uint8_t> bytes) {
    if (setjmp(error_.jump) != 0) return false;  // NOLINT(*-err52-cpp)
    jpeg_mem_src(&info_, bytes.data(), static_cast<unsigned long>(bytes.size()));
    jpeg_read_header(&info_, TRUE);
    has_several_scans_ = jpeg_has_multiple_scans(&info_) != FALSE;
    return true;
  }

  bool decode_rows(const Region& region, Image& image) {
    if (setjmp(error_.jump) != 0) return false;  // NOLINT(*-err52-cpp)
    info_.dct_method = JDCT_ISLOW;
    info_.do_fancy_upsampling = TRUE;
    const bool is_cmyk = info_.num_components == 4;
    const bool is_grey = info_.num_components == 1;
    info_.out_color_space = is_cmyk ? JCS_CMYK : is_grey ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&info_);
    if (!has_all_means()) return false;
    const std::int64_t shift = crop_columns(region);
    // libjpeg refuses to skip nothing, and skipping to the very end is of no use here.
    if (region.top > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(region.top));
    const std::int64_t components = info_.output_components;
    // Straight into the image when nothing has to be cut or converted.
    const bool is_direct = image.channels == components && info_.output_width == image.width;
    for (std::int64_t y = 0; y < region.height; ++y) {
      JSAMPROW row = is_direct ? image.row(y) : row_.data();
      jpeg_read_scanlines(&info_, &row, 1);
      if (is_direct) continue;
      convert_row(row_.data() + shift * components, components, region.width, image.row(y),
                  image.channels);
    }
    return true;
  }

  /// Of a progressive image, all scans of which have been read. Without a component's mean (DC)
  /// only its edges would be there; the library does not mind.
  bool has_all_means() {
    for (int c = 0; info_.progressive_mode != FALSE && c < info_.num_components; ++c) {
      if (info_.coef_bits[c][0] >= 0) continue;
      std::snprintf(error_.message.data(), error_.message.size(), "the first scan is missing");
      return false;
    }
    return true;
  }

  /// Leaves out columns far from the region; returns where the region begins in the remaining
  /// columns.
  std::int64_t crop_columns(const Region& region) {
    const auto full_width = static_cast<std::int64_t>(info_.output_width);
    const std::int64_t begin = std::max<std::int64_t>(0, region.left - kColumnMargin);
    const std::int64_t end = std::min(full_width, region.left + region.width + kColumnMargin);
    auto offset = static_cast<JDIMENSION>(begin);
    auto width = static_cast<JDIMENSION>(end - begin);
    if (width < info_.output_width) jpeg_crop_scanline(&info_, &offset, &width);
    return region.left - static_cast<std::int64_t>(offset);
  }

  jpeg_decompress_struct info_ = {};
  ErrorManager error_ = {};
  jpeg_progress_mgr progress_ = {};
  bool has_several_scans_ = false;  ///< the image opened last
  std::vector<std::uint8_t> row_;
};

JpegDecoder::JpegDecoder() : impl_(std::make_unique<Impl>()) {}
JpegDecoder::~JpegDecoder() = default;

absl::StatusOr<ImageSize> JpegDecoder::open(std::span<const std::uint8_t> bytes) {
  return impl_->open(bytes);
}

bool JpegDecoder::decodes_all() const { return impl_->decodes_all(); }

absl::Status JpegDecoder::decode(const Region& region, std::int64_t channels, Image& image) {
  return impl_->decode(region, channels, image);
}

}  // namespace poseidon
