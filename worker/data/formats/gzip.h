#pragma once

// Unpacks the bytes of a file if they are gzip (by their first bytes). Pure.
//
// Called by: worker/data/formats/idx.h. Calls: zlib.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace poseidon {

/// Reads through `file_bytes`, which must outlive it. Allocates no memory by what the bytes claim:
/// the caller of read() decides how much is unpacked. One thread.
class ByteReader {
 public:
  /// Errors start with `source`.
  ByteReader(std::string_view file_bytes, std::string_view source);
  ~ByteReader();
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  bool is_gzip() const { return inflater_ != nullptr; }

  /// Up to `size` bytes, fewer only at the end of the data. INVALID_ARGUMENT for corrupt gzip: a
  /// wrong checksum or length, a broken stream, one that ends early, or bytes other than zeros
  /// after it.
  absl::StatusOr<std::size_t> read(std::uint8_t* buffer, std::size_t size);

 private:
  class Inflater;
  std::string_view rest_;  ///< plain files only
  std::unique_ptr<Inflater> inflater_;
};

}  // namespace poseidon
