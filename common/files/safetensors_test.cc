#include "common/files/safetensors.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::safetensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<float> kWeight = {
    1.5f, -2.0f, 0.0f, 3e-40f, std::numeric_limits<float>::infinity(), 7.0f};
const std::vector<float> kBias = {0.25f, -0.0f};
const std::vector<float> kNone;

std::vector<TensorView> example() {
  return {{"ip1.weight", {2, 3}, kWeight}, {"a.bias", {2}, kBias}, {"none", {0, 4}, kNone}};
}

/// A file in memory.
std::string joined(const EncodedSafetensors& encoded) {
  std::string bytes = encoded.header;
  for (const std::string_view piece : encoded.values) bytes += piece;
  EXPECT_EQ(bytes.size(), encoded.size_bytes());
  return bytes;
}

void write(const std::string& path, const std::vector<TensorView>& tensors) {
  const absl::Status status = write_file_atomically(path, joined(*encode_safetensors(tensors)));
  EXPECT_TRUE(status.ok()) << status;
}

absl::StatusOr<SafetensorsHeader> parse(std::string_view bytes) {
  const auto header_bytes = safetensors_header_bytes(bytes, bytes.size(), "f");
  if (!header_bytes.ok()) return header_bytes.status();
  return parse_safetensors_header(bytes.substr(0, *header_bytes), bytes.size(), "f");
}

std::vector<float> values_of(const StoredTensor& tensor, std::string_view bytes) {
  std::vector<float> values(tensor.elements);
  decode_values(tensor.dtype, bytes.substr(tensor.offset_bytes, tensor.size_bytes), values);
  return values;
}

/// A file with this header and `data_bytes` zero bytes.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + std::string(data_bytes, '\0');
}

std::string error_of(const std::string& header, std::size_t data_bytes) {
  return std::string(parse(file_of(header, data_bytes)).status().message());
}

TEST(Safetensors, RoundTrip) {
  const auto encoded = encode_safetensors(example(), {{"by", "poseidon \"1\""}});
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  const std::string bytes = joined(*encoded);
  const absl::StatusOr<SafetensorsHeader> header = parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "ip1.weight");
  EXPECT_EQ(header->tensors[0].dtype, "F32");
  EXPECT_THAT(header->tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(std::memcmp(values_of(header->tensors[0], bytes).data(), kWeight.data(), 24), 0);
  ASSERT_NE(header->find("a.bias"), nullptr);
  EXPECT_TRUE(std::signbit(values_of(*header->find("a.bias"), bytes)[1]));
  EXPECT_TRUE(values_of(*header->find("none"), bytes).empty());
  EXPECT_EQ(header->find("other"), nullptr);
  EXPECT_EQ(header->metadata.at("by"), "poseidon \"1\"");
}

TEST(Safetensors, BytesAreFixed) {
  const std::vector<TensorView> tensors = {{"a.bias", {2}, kBias}};
  const std::string bytes = joined(*encode_safetensors(tensors));
  const std::string header = R"({"a.bias":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}})";
  const std::size_t padded = (header.size() + 7) / 8 * 8;
  EXPECT_EQ(bytes.substr(8, padded), header + std::string(padded - header.size(), ' '));
  EXPECT_EQ(bytes.size(), 8 + padded + 8);
  EXPECT_EQ(joined(*encode_safetensors(tensors)), bytes);
  EXPECT_EQ(joined(*encode_safetensors({})), file_of("{}      ", 0));
}

TEST(Safetensors, DataStartAligned) {
  for (std::size_t length = 1; length <= 16; ++length) {
    const std::vector<TensorView> tensors = {{std::string(length, 'n'), {2}, kBias}};
    const std::string bytes = joined(*encode_safetensors(tensors));
    EXPECT_EQ((bytes.size() - 8) % 8, 0u);
    EXPECT_TRUE(parse(bytes).ok());
  }
}

// What PyTorch and others store: every floating type becomes float32, others keep their place.
TEST(Safetensors, OtherDtypes) {
  const auto decoded = [](std::string_view dtype, const auto& stored) {
    std::vector<float> values(stored.size());
    decode_values(
        dtype,
        {reinterpret_cast<const char*>(stored.data()), stored.size() * sizeof(stored.front())},
        values);
    return values;
  };
  EXPECT_THAT(decoded("F64", std::vector<double>{0.1, -1e-300}), ElementsAre(0.1f, -0.0f));
  EXPECT_THAT(decoded("F16", std::vector<std::uint16_t>{0x3C00, 0xC100, 0x0001}),
              ElementsAre(1.0f, -2.5f, 0x1p-24f));
  EXPECT_THAT(decoded("BF16", std::vector<std::uint16_t>{0x3F80, 0xC020}),
              ElementsAre(1.0f, -2.5f));
  for (const char* dtype : {"F64", "F32", "F16", "BF16"}) EXPECT_TRUE(is_floating_dtype(dtype));
  for (const char* dtype : {"I64", "U8", "BOOL", "F8_E4M3", ""}) {
    EXPECT_FALSE(is_floating_dtype(dtype));
  }
  const auto header = parse(
      file_of(R"({"bn.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[0].dtype, "I64");
  EXPECT_EQ(header->tensors[0].elements, 1u);
}

// Types of a later version of the format, perhaps packed: a reader that does not use them need not
// know them.
TEST(Safetensors, DtypesThatWeDoNotKnowKeepTheirPlace) {
  const auto header = parse(file_of(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]},)"
                                    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})",
                                    7));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[0].dtype, "F6_E2M3");
  EXPECT_EQ(header->tensors[0].elements, 4u);
  EXPECT_FALSE(is_floating_dtype(header->tensors[0].dtype)) << "so nobody decodes it";
  EXPECT_EQ(header->tensors[1].name, "b");
}

TEST(Safetensors, WriterRefusesWhatNobodyCouldRead) {
  const auto error = [](std::vector<TensorView> tensors) {
    return std::string(encode_safetensors(tensors).status().message());
  };
  EXPECT_THAT(error({{"a", {3}, kBias}}), HasSubstr("shape [3] does not fit its 2 values"));
  EXPECT_THAT(error({{"a", {-1, -2}, kBias}}), HasSubstr("does not fit"));
  EXPECT_THAT(error({{"a", {2}, kBias}, {"a", {2}, kBias}}), HasSubstr("two tensors are named"));
  EXPECT_THAT(error({{"", {2}, kBias}}), HasSubstr("cannot be the name"));
  EXPECT_THAT(error({{"__metadata__", {2}, kBias}}), HasSubstr("cannot be the name"));
  EXPECT_THAT(error({{"\xff", {2}, kBias}}), HasSubstr("not UTF-8"));
}

TEST(Safetensors, ReaderChecksEveryClaim) {
  const auto entry = [](const std::string& name, const std::string& shape,
                        const std::string& offsets) {
    return str_cat("\"", name, R"(":{"dtype":"F32","shape":)", shape, R"(,"data_offsets":)",
                   offsets, "}");
  };
  EXPECT_EQ(error_of(str_cat("{", entry("a", "[2]", "[0,8]"), "}  "), 8), "")
      << "padding is allowed";
  EXPECT_EQ(error_of(str_cat("{", entry("a", "[]", "[0,4]"), "}"), 4), "") << "a scalar";
  const struct {
    std::string header;
    std::size_t data_bytes;
    const char* message;
  } cases[] = {
      {"[]", 0, "expected an object"},
      {"{", 0, "parse error"},
      {str_cat("{", entry("a", "[2]", "[0,8]"), "}"), 7, "not inside the 7 bytes"},
      {str_cat("{", entry("a", "[2]", "[0,8]"), "}"), 9, "1 bytes after the last tensor"},
      {str_cat("{", entry("a", "[2]", "[8,0]"), "}"), 8, "not inside"},
      {str_cat("{", entry("a", "[2]", "[4,12]"), "}"), 12, "after a hole"},
      {str_cat("{", entry("a", "[3]", "[0,8]"), "}"), 8, "shape [3] of F32 does not fit 8 bytes"},
      {str_cat("{", entry("a", "[2]", "[0,8]"), ",", entry("b", "[2]", "[4,12]"), "}"), 12,
       "inside the tensor before it"},
      {str_cat("{", entry("a", "[2]", "[0,8]"), ",", entry("a", "[2]", "[8,16]"), "}"), 16,
       "a: the key is there twice"},
      {str_cat("{", entry("a", "[4294967296,4294967296]", "[0,0]"), "}"), 0, "does not fit"},
      {str_cat("{", entry("a", "[1099511627776,1099511627776,0,1]", "[0,0]"), "}"), 0,
       "does not fit"},
      {str_cat("{", entry("a", "[-1]", "[0,4]"), "}"), 4, "shape[0]: expected an integer"},
      {str_cat("{", entry("a", "[1.0]", "[0,4]"), "}"), 4, "shape[0]: expected an integer"},
      {str_cat("{", entry("a", "[1]", "[0]"), "}"), 4, "data_offsets: expected an array of 2"},
      {str_cat("{", entry("a", "[1]", "[0,18446744073709551615]"), "}"), 4,
       "data_offsets[1]: expected"},
      {R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,4]}})", 4,
       "shape [1] of F64 does not fit 4 bytes"},
      {R"({"a":{"dtype":"f32 ","shape":[1],"data_offsets":[0,4]}})", 4,
       "dtype: expected the name of a type, such as \"F32\", got \"f32 \""},
      {R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype: expected a text"},
      {R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[1,4]}})", 4, "after a hole"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "dtype: is missing"},
      {R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1}})", 0, "x: unknown key"},
      {R"({"a":3})", 0, "expected an object"},
      {R"({"__metadata__":{"a":1}})", 0, "expected a text"},
      {R"({"__metadata__":[]})", 0, "expected an object of texts"},
      {"{\"a\":[[[[[]]]]]}", 0, "inside each other"},
  };
  for (const auto& test : cases) {
    const std::string message = error_of(test.header, test.data_bytes);
    EXPECT_THAT(message, HasSubstr(test.message)) << test.header;
    EXPECT_THAT(message, StartsWith("f: ")) << test.header;
  }
  for (const std::size_t size : {0u, 1u, 7u}) {
    EXPECT_FALSE(parse(std::string(size, '\0')).ok());
  }
}

// What it is instead is said, and not what is in it: who reads the message may not be somebody who
// may read the file.
TEST(Safetensors, AnotherFileIsNamedByItsKindAlone) {
  const auto refusal = [](std::string bytes) {
    bytes.resize(200, 's');
    return std::string(parse(bytes).status().message());
  };
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(refusal("PK\x03\x04 an archive"), HasSubstr("torch.save"));
  EXPECT_THAT(refusal("\x80\x02 a pickle"), HasSubstr("torch.save"));
  EXPECT_THAT(refusal("{\"weights\": []}"), HasSubstr("looks like JSON"));
  EXPECT_EQ(refusal("root:x:0:0"), refusal("secrets.")) << "a first byte shows";
  EXPECT_THAT(refusal("root:x:0:0"), HasSubstr("f: is no safetensors file"));
}

/// Seeded damage: no crash (the sanitizer builds look closer), an error that names the file, or
/// else a file whose parts fit together.
TEST(Safetensors, SurvivesDamage) {
  const std::string good = joined(*encode_safetensors(example(), {{"k", "v"}}));
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    SplitMix64 random(seed);
    std::string bytes = good;
    for (std::uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
      switch (random.below(4)) {
        case 0:
          bytes.resize(random.below(bytes.size() + 1));
          break;
        case 1:
          bytes.insert(random.below(bytes.size() + 1), 1, static_cast<char>(random.next()));
          break;
        default:  // mostly in length and header, where the decisions are
          if (!bytes.empty()) {
            const std::size_t end =
                random.below(4) == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 200);
            bytes[random.below(end)] ^= static_cast<char>(1u << random.below(8));
          }
      }
    }
    const absl::StatusOr<SafetensorsHeader> file = parse(bytes);
    if (!file.ok()) {
      ++refused;
      ASSERT_THAT(std::string(file.status().message()), StartsWith("f: ")) << "seed " << seed;
      continue;
    }
    for (const StoredTensor& tensor : file->tensors) {
      std::int64_t count = 1;
      for (const std::int64_t dimension : tensor.shape) count *= dimension;
      ASSERT_EQ(static_cast<std::size_t>(count), tensor.elements) << "seed " << seed;
      ASSERT_LE(tensor.offset_bytes + tensor.size_bytes, bytes.size()) << "seed " << seed;
      if (is_floating_dtype(tensor.dtype)) values_of(tensor, bytes);
    }
  }
  EXPECT_GT(refused, 3000);
  EXPECT_LT(refused, 6000) << "damage in the data alone must be readable";
}

TEST(Safetensors, Files) {
  const std::string path = ::testing::TempDir() + "safetensors_test.safetensors";
  write(path, example());
  {
    const auto reader = SafetensorsReader::open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const StoredTensor* weight = reader->header().find("ip1.weight");
    std::vector<float> values(weight->elements);
    ASSERT_TRUE(reader->read(*weight, values).ok());
    EXPECT_EQ(std::memcmp(values.data(), kWeight.data(), 24), 0);
    ASSERT_TRUE(reader->read(*reader->header().find("none"), {}).ok());
    // A file that shrinks under our hands is an error, not old or foreign bytes.
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 8);
    std::vector<float> bias(2);
    const absl::Status cut = reader->read(*reader->header().find("a.bias"), bias);
    EXPECT_THAT(std::string(cut.message()), ::testing::AllOf(StartsWith(path), HasSubstr("ends")));
  }
  EXPECT_THAT(std::string(SafetensorsReader::open(path).status().message()),
              ::testing::AllOf(StartsWith(path + ": "), HasSubstr("is the file complete?")));
  std::remove(path.c_str());
  EXPECT_THAT(std::string(SafetensorsReader::open(path).status().message()),
              StartsWith(path + ": "));
  EXPECT_FALSE(SafetensorsReader::open(::testing::TempDir()).ok());
}

// More values than one read takes.
TEST(Safetensors, LargeTensorsComeInPieces) {
  const std::string path = ::testing::TempDir() + "safetensors_large.safetensors";
  std::vector<float> values(700'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<TensorView> tensors = {{"a", {1}, std::span(values).first(1)},
                                           {"b", {700'001}, values}};
  write(path, tensors);
  const auto reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> read(values.size());
  ASSERT_TRUE(reader->read(reader->header().tensors[1], read).ok());
  EXPECT_EQ(read, values);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace poseidon::safetensors_test
