#pragma once

// Small helpers of the data tests: IDX and gzip bytes, a folder that cleans up after itself.

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"

namespace poseidon {

/// IDX file bytes: header for `dimensions`, then `values`, which need not fit to it.
inline std::string idx_bytes(const std::vector<std::uint32_t>& dimensions,
                             std::string_view values) {
  std::string bytes = {0, 0, 8, static_cast<char>(dimensions.size())};
  for (const std::uint32_t dimension : dimensions) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(dimension >> shift);
  }
  return bytes.append(values);
}

/// `bytes` as a gzip file.
inline std::string gzip(std::string_view bytes) {
  z_stream stream = {};
  POSEIDON_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "");
  std::string packed(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  POSEIDON_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "");
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "poseidon_data_XXXXXX").string();
    POSEIDON_CHECK(::mkdtemp(name.data()) != nullptr, "no temporary folder");
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  /// Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const {
    const std::string path = (path_ / name).string();
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace poseidon
