#include "worker/data/formats/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/check.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr int kGzipOnly = 15 + 16;  // the largest window; a gzip header, not a zlib one

bool starts_as_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

uInt clamp_size(std::size_t size) {
  return static_cast<uInt>(std::min<std::size_t>(size, std::numeric_limits<uInt>::max()));
}

}  // namespace

/// One z_stream over all members of the file (gzip files may be concatenated).
class ByteReader::Inflater {
 public:
  Inflater(std::string_view bytes, std::string_view source) : rest_(bytes), source_(source) {
    POSEIDON_CHECK(inflateInit2(&stream_, kGzipOnly) == Z_OK, "zlib has no memory");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  absl::StatusOr<std::size_t> read(std::uint8_t* buffer, std::size_t size) {
    std::size_t done = 0;
    while (done < size && !is_at_end_) {
      // zlib's interface predates const; it does not write to next_in.
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));
      stream_.avail_in = clamp_size(rest_.size());
      stream_.next_out = buffer + done;
      stream_.avail_out = clamp_size(size - done);
      const uInt had_in = stream_.avail_in;
      const uInt had_out = stream_.avail_out;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      rest_.remove_prefix(had_in - stream_.avail_in);
      done += had_out - stream_.avail_out;
      if (result == Z_STREAM_END) {
        if (absl::Status status = next_member(); !status.ok()) return status;
      } else if (result == Z_BUF_ERROR) {
        return complain("the gzip data are truncated");
      } else if (result != Z_OK) {
        return complain(
            str_cat("corrupt gzip data: ", stream_.msg == nullptr ? zError(result) : stream_.msg));
      }
    }
    return done;
  }

 private:
  absl::Status complain(std::string_view message) const {
    return absl::InvalidArgumentError(str_cat(source_, ": ", message));
  }

  absl::Status next_member() {
    // Tapes and block devices fill up with zeros; gzip and Python's gzip skip them.
    rest_.remove_prefix(std::min(rest_.find_first_not_of('\0'), rest_.size()));
    is_at_end_ = rest_.empty();
    if (is_at_end_) return absl::OkStatus();
    if (!starts_as_gzip(rest_)) {
      return complain(str_cat(rest_.size(), " bytes after the end of the gzip data"));
    }
    POSEIDON_CHECK(inflateReset(&stream_) == Z_OK, "zlib refused a reset");
    return absl::OkStatus();
  }

  z_stream stream_ = {};
  std::string_view rest_;
  const std::string source_;
  bool is_at_end_ = false;
};

ByteReader::ByteReader(std::string_view file_bytes, std::string_view source) : rest_(file_bytes) {
  if (starts_as_gzip(file_bytes)) inflater_ = std::make_unique<Inflater>(file_bytes, source);
}

ByteReader::~ByteReader() = default;

absl::StatusOr<std::size_t> ByteReader::read(std::uint8_t* buffer, std::size_t size) {
  if (inflater_ != nullptr) return inflater_->read(buffer, size);
  const std::size_t copied = std::min(size, rest_.size());
  if (copied > 0) std::memcpy(buffer, rest_.data(), copied);
  rest_.remove_prefix(copied);
  return copied;
}

}  // namespace poseidon
