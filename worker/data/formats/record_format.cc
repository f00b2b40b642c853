#include "worker/data/formats/record_format.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"
#include "worker/data/formats/image_folder.h"
#include "worker/data/images/image_decoder.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFileMagic = "PSDNREC\n";
constexpr std::string_view kEndMagic = "PSDNEND\n";
constexpr std::int64_t kMaxRecordSamples = 0xFFFFFFFF;

template <typename Number>
void put(std::uint8_t* at, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    at[i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

template <typename Number>
Number get(const std::uint8_t* at) {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) value |= Number{at[i]} << (8 * i);
  return value;
}

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

bool is_magic(const std::uint8_t* at, std::string_view magic) {
  return std::memcmp(at, magic.data(), magic.size()) == 0;
}

absl::Status check_version(std::uint32_t version) {
  if (version == kRecordVersion) return absl::OkStatus();
  return absl::DataLossError(str_cat("is of format version ", version, ", this program reads ",
                                     kRecordVersion, "; pack the data again"));
}

Json info_to_json(const RecordSetInfo& info) {
  return {{"shard", info.shard},        {"shards", info.shards},
          {"samples", info.samples},    {"set", info.set},
          {"shape", info.sample_shape}, {"classes", utf8_names(info.class_names)}};
}

absl::StatusOr<RecordSetInfo> info_from_json(std::string_view text) {
  POSEIDON_ASSIGN_OR_RETURN(const Json json,
                            parse_json(text, "description", {.max_bytes = kMaxRecordInfoBytes}));
  RecordSetInfo info;
  JsonFields fields(json, "description", "");
  for (const char* key : {"shard", "shards", "samples", "set", "shape", "classes"}) {
    fields.require(key);
  }
  fields.integer("shards", &info.shards, 1, kMaxShards);
  fields.integer("shard", &info.shard, 0, info.shards - 1);
  fields.integer("samples", &info.samples, 1, kMaxRecordSamples);
  std::int64_t set = 0;
  fields.integer("set", &set, 0, kMaxRecordSamples);
  info.set = static_cast<std::uint32_t>(set);
  fields.integers("shape", &info.sample_shape, 0, kMaxImagePixels, 3, 3);
  fields.strings("classes", &info.class_names, 0, kMaxFolderClasses);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  // Either nothing is known, or all of it; and a sample is no larger than a record.
  const Shape& shape = info.sample_shape;
  const bool is_any = shape == Shape{0, 0, 0};
  const double values =
      static_cast<double>(shape[0]) * static_cast<double>(shape[1]) * static_cast<double>(shape[2]);
  if (!is_any && (values < 1.0 || values > static_cast<double>(kMaxRecordBytes))) {
    return absl::InvalidArgumentError("description: shape: out of range");
  }
  return info;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t before) {
  // The library takes an int, and leaves out the inversions of the standard.
  std::uint32_t crc = ~before;
  while (!bytes.empty()) {
    const std::size_t piece = std::min<std::size_t>(bytes.size(), 1 << 30);
    crc = ::crc32_iscsi(const_cast<unsigned char*>(bytes.data()), static_cast<int>(piece), crc);
    bytes = bytes.subspan(piece);
  }
  return ~crc;
}

std::array<std::uint8_t, kRecordFileHeaderBytes> encode_record_file_header() {
  std::array<std::uint8_t, kRecordFileHeaderBytes> header = {};
  std::copy(kFileMagic.begin(), kFileMagic.end(), header.begin());
  put(header.data() + 8, kRecordVersion);
  put(header.data() + 12, crc32c(std::span(header).first(12)));
  return header;
}

absl::Status check_record_file_header(std::span<const std::uint8_t> bytes) {
  POSEIDON_CHECK(bytes.size() == kRecordFileHeaderBytes, "not a file header");
  if (!is_magic(bytes.data(), kFileMagic)) return absl::DataLossError("is no record file");
  POSEIDON_RETURN_IF_ERROR(check_version(get<std::uint32_t>(bytes.data() + 8)));
  if (get<std::uint32_t>(bytes.data() + 12) == crc32c(bytes.first(12))) return absl::OkStatus();
  return absl::DataLossError("the checksum of its header is wrong");
}

std::vector<std::string> utf8_names(std::vector<std::string> names) {
  for (std::string& name : names) name = to_utf8(name);
  return names;
}

std::array<std::uint8_t, kRecordHeaderBytes> encode_record_header(
    Encoding encoding, std::uint32_t label, std::span<const std::uint8_t> payload) {
  POSEIDON_CHECK(payload.size() <= kMaxRecordBytes, "a record too large");
  std::array<std::uint8_t, kRecordHeaderBytes> header = {};
  put(header.data() + 4, static_cast<std::uint32_t>(payload.size()));
  put(header.data() + 8, label);
  header[12] = static_cast<std::uint8_t>(encoding);
  put(header.data(), crc32c(payload, crc32c(std::span(header).subspan(4))));
  return header;
}

absl::Status decode_record(std::span<const std::uint8_t> bytes, std::uint32_t expected_label,
                           EncodedSample& sample) {
  if (bytes.size() < kRecordHeaderBytes) return absl::DataLossError("the record is truncated");
  const std::uint8_t* header = bytes.data();
  if (get<std::uint32_t>(header) != crc32c(bytes.subspan(4))) {
    return absl::DataLossError("the checksum of the record is wrong");
  }
  const auto label = get<std::uint32_t>(header + 8);
  if (get<std::uint32_t>(header + 4) != bytes.size() - kRecordHeaderBytes || header[12] > 1 ||
      label != expected_label) {
    return absl::DataLossError("the record's header does not fit its place in the index");
  }
  sample.encoding = static_cast<Encoding>(header[12]);
  sample.label = static_cast<std::int32_t>(label);
  sample.bytes = bytes.subspan(kRecordHeaderBytes);
  return absl::OkStatus();
}

std::string encode_record_index(const RecordIndex& index) {
  POSEIDON_CHECK(index.offsets.size() == index.labels.size() + 1, "offsets and labels");
  const std::size_t records = index.labels.size();
  const std::string json = info_to_json(index.info).dump();
  std::string text(8 * (records + 1) + 4 * records, '\0');
  auto* at = reinterpret_cast<std::uint8_t*>(text.data());
  for (const std::uint64_t offset : index.offsets) {
    put(at, offset);
    at += 8;
  }
  for (const std::uint32_t label : index.labels) {
    put(at, label);
    at += 4;
  }
  text += json;
  std::array<std::uint8_t, kRecordFooterBytes> footer = {};
  put(footer.data(), index.offsets.back());
  put(footer.data() + 8, static_cast<std::uint64_t>(records));
  put(footer.data() + 16, static_cast<std::uint32_t>(json.size()));
  put(footer.data() + 20, crc32c(bytes_of(text)));
  put(footer.data() + 24, kRecordVersion);
  put(footer.data() + 28, crc32c(std::span(footer).first(28)));
  std::copy(kEndMagic.begin(), kEndMagic.end(), footer.begin() + 32);
  text.append(reinterpret_cast<const char*>(footer.data()), footer.size());
  return text;
}

absl::StatusOr<RecordFooter> decode_record_footer(std::span<const std::uint8_t> bytes,
                                                  std::uint64_t file_bytes) {
  POSEIDON_CHECK(bytes.size() == kRecordFooterBytes, "not a footer");
  const std::uint8_t* at = bytes.data();
  if (!is_magic(at + 32, kEndMagic)) {
    return absl::DataLossError("has no end mark: it is truncated, or was never finished");
  }
  if (get<std::uint32_t>(at + 28) != crc32c(bytes.first(28))) {
    return absl::DataLossError("the checksum of its end is wrong");
  }
  POSEIDON_RETURN_IF_ERROR(check_version(get<std::uint32_t>(at + 24)));
  const RecordFooter footer{.index_offset = get<std::uint64_t>(at),
                            .records = get<std::uint64_t>(at + 8),
                            .info_bytes = get<std::uint32_t>(at + 16),
                            .index_crc = get<std::uint32_t>(at + 20)};
  if (footer.records > kMaxShardRecords || footer.info_bytes > kMaxRecordInfoBytes ||
      footer.index_offset > file_bytes ||
      footer.index_offset + footer.index_bytes() + kRecordFooterBytes != file_bytes) {
    return absl::DataLossError("its index does not fit its size");
  }
  return footer;
}

absl::StatusOr<RecordIndex> decode_record_index(std::span<const std::uint8_t> bytes,
                                                const RecordFooter& footer) {
  POSEIDON_CHECK(bytes.size() == footer.index_bytes(), "not this footer's index");
  if (crc32c(bytes) != footer.index_crc) {
    return absl::DataLossError("the checksum of its index is wrong");
  }
  RecordIndex index;
  index.offsets.resize(footer.records + 1);
  index.labels.resize(footer.records);
  const std::uint8_t* at = bytes.data();
  std::uint64_t expected = kRecordFileHeaderBytes;
  for (std::uint64_t i = 0; i <= footer.records; ++i, at += 8) {
    const auto offset = get<std::uint64_t>(at);
    const std::uint64_t longest = kRecordHeaderBytes + kMaxRecordBytes;
    const bool is_first = i == 0;
    if (is_first ? offset != expected
                 : offset < expected + kRecordHeaderBytes || offset > expected + longest) {
      return absl::DataLossError(str_cat("its index puts record ", i, " at ", offset));
    }
    index.offsets[i] = expected = offset;
  }
  if (expected != footer.index_offset) {
    return absl::DataLossError("its index does not begin where its records end");
  }
  for (std::uint32_t& label : index.labels) {
    label = get<std::uint32_t>(at);
    at += 4;
    if (label > 0x7FFFFFFF) return absl::DataLossError("its index has a label out of range");
  }
  const std::string_view json(reinterpret_cast<const char*>(at), footer.info_bytes);
  auto info = info_from_json(json);
  if (!info.ok()) {
    return absl::DataLossError(std::string(info.status().message()));
  }
  index.info = *std::move(info);
  return index;
}

}  // namespace poseidon
