// A record file, as a data set opens it: file header, footer, index, every record.
//
// Checksums stop a fuzzer, so the target repairs them: the code behind them is fuzzed as well.

#include <cstring>

#include "common/base/check.h"
#include "tests/fuzz/input.h"
#include "worker/data/formats/record_format.h"

namespace poseidon::fuzz {
namespace {

using File = std::vector<std::uint8_t>;

void put_u32(File& file, std::size_t at, std::uint32_t value) {
  std::memcpy(file.data() + at, &value, sizeof value);
}
std::uint32_t u32(const File& file, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}
std::uint64_t u64(const File& file, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

/// Where record_format.h says they are.
void repair_checksums(File& file) {
  if (file.size() < kRecordFileHeaderBytes + kRecordFooterBytes) return;
  const std::span<const std::uint8_t> all(file);
  put_u32(file, 12, crc32c(all.first(12)));
  const std::size_t footer = file.size() - kRecordFooterBytes;
  const std::uint64_t index = u64(file, footer);
  if (index < footer) put_u32(file, footer + 20, crc32c(all.subspan(index, footer - index)));
  put_u32(file, footer + 28, crc32c(all.subspan(footer, 28)));
}

void repair_record(File& file, std::uint64_t begin, std::uint64_t end) {
  if (begin + kRecordHeaderBytes > end || end > file.size()) return;
  const std::uint64_t payload = u32(file, begin + 4);
  if (payload > end - begin - kRecordHeaderBytes) return;
  put_u32(file, begin,
          crc32c(std::span<const std::uint8_t>(file).subspan(begin + 4,
                                                             kRecordHeaderBytes - 4 + payload)));
}

void read_set(File& file) {
  const std::span<const std::uint8_t> all(file);
  if (file.size() < kRecordFileHeaderBytes + kRecordFooterBytes) return;
  if (!check_record_file_header(all.first(kRecordFileHeaderBytes)).ok()) return;
  const std::size_t footer_at = file.size() - kRecordFooterBytes;
  const auto footer = decode_record_footer(all.subspan(footer_at), file.size());
  if (!footer.ok()) return;
  POSEIDON_CHECK(footer->index_offset + footer->index_bytes() == footer_at,
                 "the index is part of the file");
  const auto index =
      decode_record_index(all.subspan(footer->index_offset, footer->index_bytes()), *footer);
  if (!index.ok()) return;
  for (std::size_t i = 0; i < index->labels.size(); ++i) {
    const std::uint64_t begin = index->offsets[i], end = index->offsets[i + 1];
    POSEIDON_CHECK(begin <= end && end <= footer->index_offset, "records are part of the file");
    repair_record(file, begin, end);
    EncodedSample sample;
    (void)decode_record(all.subspan(begin, end - begin), index->labels[i], sample);
  }
}

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  fuzz::Input input(data, size);
  const bool repairs = input.byte() % 4 != 0;
  fuzz::File file(input.rest().begin(), input.rest().end());
  if (repairs) fuzz::repair_checksums(file);
  fuzz::read_set(file);
  return 0;
}
