// Record files: packed samples are read back, and damage is located.

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/golden_images.h"
#include "worker/data/formats/image_folder.h"
#include "worker/data/formats/pack.h"
#include "worker/data/formats/record_format.h"
#include "worker/data/formats/records_dataset.h"
#include "worker/data/formats/records_writer.h"
#include "worker/data/formats/test_files.h"

namespace poseidon::records_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Two classes of golden images; `bad` adds one that no decoder reads.
std::shared_ptr<const Dataset> images(const TestFolder& folder, bool bad = false) {
  int number = 0;
  for (const auto& image : golden_images().at("decode")) {
    const std::string kind = number % 3 == 0 ? "cats" : "dogs";
    folder.write("images/" + kind + "/" + std::to_string(100 + number++) + ".jpg",
                 text_of(from_base64(image.at("file"))));
  }
  if (bad) folder.write("images/cats/000.jpg", "no image");
  return open_image_folder(folder.path("images"), 10).value();
}

std::shared_ptr<const Dataset> numbers(std::int64_t size) {
  std::vector<std::uint8_t> pixels, labels;
  for (std::int64_t i = 0; i < size; ++i) {
    for (int j = 0; j < 6; ++j) pixels.push_back(static_cast<std::uint8_t>(i * 7 + j));
    labels.push_back(static_cast<std::uint8_t>(i % 5));
  }
  return std::make_shared<MemoryDataset>("numbers", Shape{1, 2, 3}, pixels, labels);
}

void expect_same_samples(const Dataset& a, const Dataset& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a.sample_shape(), b.sample_shape());
  EXPECT_EQ(a.class_names(), b.class_names());
  EncodedSample one, other;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(a.read(i, one).ok());
    const absl::Status status = b.read(i, other);
    ASSERT_TRUE(status.ok()) << status;
    b.will_read(i);
    EXPECT_EQ(one.label, other.label);
    EXPECT_EQ(one.encoding, other.encoding);
    EXPECT_TRUE(
        std::equal(one.bytes.begin(), one.bytes.end(), other.bytes.begin(), other.bytes.end()));
  }
}

std::string open_error(const std::string& path, std::int64_t classes = 10) {
  return std::string(open_records_dataset(path, classes).status().message());
}

TEST(RecordFormat, ChecksumIsTheStandardOne) {
  const std::string check = "123456789";  // RFC 3720, B.4, has others; this one is widely used
  const std::vector<std::uint8_t> bytes(check.begin(), check.end());
  EXPECT_EQ(crc32c(bytes), 0xE3069283u);
  EXPECT_EQ(crc32c(std::span(bytes).subspan(4), crc32c(std::span(bytes).first(4))), 0xE3069283u);
}

TEST(Records, WhatIsPackedComesOut) {
  const TestFolder folder;
  const auto source = images(folder);
  for (const std::int64_t shards : {1, 4, 14}) {
    const std::string path = folder.path("packed" + std::to_string(shards));
    const auto report = pack_records(*source, path, {.shards = shards, .threads = 2}, {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->shards, shards);
    EXPECT_EQ(report->samples.good, source->size());
    const auto packed = open_records_dataset(path, 2);
    ASSERT_TRUE(packed.ok()) << packed.status();
    expect_same_samples(*source, **packed);
    EXPECT_THAT(*read_record_classes(path), ElementsAre("cats", "dogs"));
    // From records to records, to the same bytes.
    ASSERT_TRUE(pack_records(**packed, path + "again", {.shards = shards}, {}).ok());
    EXPECT_TRUE(contents(path + "/" + shard_name(0)) == contents(path + "again/" + shard_name(0)));
  }
  const auto pixels = numbers(40);
  ASSERT_TRUE(pack_records(*pixels, folder.path("pixels"), {.shard_bytes = 100}, {}).ok());
  const auto packed = open_records_dataset(folder.path("pixels"), 5);
  ASSERT_TRUE(packed.ok()) << packed.status();
  expect_same_samples(*pixels, **packed);
  EXPECT_TRUE(std::filesystem::exists(folder.path("pixels/" + shard_name(7))))
      << "100 bytes hold four records of 22";
  EXPECT_THAT((*packed)->sample_name(9), HasSubstr("shard-00002.records, record 1"));
}

TEST(Records, NothingIsOverwrittenOrLeftBehind) {
  const TestFolder folder;
  const auto source = numbers(5);
  folder.write("there/precious", "x");
  const auto pack = [&](const std::string& name, const PackOptions& options = {}) {
    return std::string(pack_records(*source, folder.path(name), options, {}).status().message());
  };
  EXPECT_THAT(pack("there"), HasSubstr("already exists; give another folder"));
  EXPECT_EQ(contents(folder.path("there/precious")), "x");
  EXPECT_THAT(pack("no/parent"), HasSubstr("cannot make the folder"));
  EXPECT_THAT(pack("many", {.shards = 6}), HasSubstr("--shards 6: expected 1 to 5"));
  EXPECT_EQ(pack("slash/"), "");
  EXPECT_TRUE(std::filesystem::exists(folder.path("slash/" + shard_name(0))));
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path(""))) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::AnyOf("there", "slash"));
    ++entries;
  }
  EXPECT_EQ(entries, 2);
}

/// As on a file system that knows no flags of renameat2: NFS, CephFS, Lustre and 9p.
int no_flags(const char*, const char*) {
  errno = EINVAL;
  return -1;
}

TEST(Records, AreMadeWhereRenamingTakesNoFlags) {
  const TestFolder folder;
  const auto source = numbers(5);
  const auto write_all = [&](const std::string& path, ExclusiveRename rename) -> absl::Status {
    POSEIDON_ASSIGN_OR_RETURN(const auto writer, RecordsWriter::create(path, rename));
    POSEIDON_RETURN_IF_ERROR(writer->begin_shard());
    EncodedSample sample;
    for (std::int64_t i = 0; i < source->size(); ++i) {
      POSEIDON_RETURN_IF_ERROR(source->read(i, sample));
      POSEIDON_RETURN_IF_ERROR(writer->add(sample));
    }
    return writer->finish(source->sample_shape(), source->class_names());
  };
  const absl::Status status = write_all(folder.path("set"), no_flags);
  ASSERT_TRUE(status.ok()) << status;
  expect_same_samples(*source, **open_records_dataset(folder.path("set"), 5));
  EXPECT_EQ(write_all(folder.path("set"), no_flags).code(), absl::StatusCode::kInvalidArgument);
  // No renaming at all is known before the work begins, and leaves nothing.
  const auto refuse = [](const char*, const char*) {
    errno = EPERM;
    return -1;
  };
  EXPECT_EQ(RecordsWriter::create(folder.path("other"), refuse).status().code(),
            absl::StatusCode::kPermissionDenied);
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path(""))) {
    EXPECT_EQ(entry.path().filename(), "set");
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST(Records, WhatIsPackedStaysWhenItsNameIsTaken) {
  for (const ExclusiveRename rename : {exclusive_rename, no_flags}) {
    const TestFolder folder;
    const auto source = numbers(5);
    EncodedSample sample;
    {
      const auto writer = RecordsWriter::create(folder.path("set"), rename).value();
      ASSERT_TRUE(writer->begin_shard().ok());
      for (std::int64_t i = 0; i < source->size(); ++i) {
        ASSERT_TRUE(source->read(i, sample).ok());
        ASSERT_TRUE(writer->add(sample).ok());
      }
      folder.write("set/precious", "x");
      const absl::Status status = writer->finish(source->sample_shape(), source->class_names());
      EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("all samples are packed and stay in " + folder.path("set.tmp-")));
    }
    EXPECT_EQ(contents(folder.path("set/precious")), "x");
    const auto kept = open_records_dataset(folder.path("set.tmp-" + std::to_string(::getpid())), 5);
    ASSERT_TRUE(kept.ok()) << kept.status();
    expect_same_samples(*source, **kept);
  }
}

TEST(Records, AFullDiskIsNamedAndLeavesNothing) {
  const TestFolder folder;
  const auto source = numbers(5000);
  // Files may not grow beyond 64 KiB: as with a full disk, a write fails half way.
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 64 << 10, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = pack_records(*source, folder.path("set"), {}, {}).status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard-00000.records: cannot write"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("")));
}

TEST(Records, UnreadableSamplesAreLeftOutAndNamed) {
  const TestFolder folder;
  const auto source = images(folder, true);
  const std::int64_t good = source->size() - 1;
  std::vector<std::string> names;
  VisitEvents events;
  events.unreadable = [&](const std::string& name, const std::string& reason) {
    names.push_back(std::filesystem::path(name).filename().string() + ": " + reason);
  };
  std::vector<std::int64_t> visited;
  events.visited = [&](std::int64_t samples) { visited.push_back(samples); };
  const auto checked = check_samples(*source, 3, events);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->good, good);
  EXPECT_EQ(checked->unreadable, 1);
  EXPECT_EQ(visited.back(), source->size());
  EXPECT_THAT(names, ElementsAre("000.jpg: neither JPEG nor PNG"));
  const auto report = pack_records(*source, folder.path("packed"), {.shards = 3}, events);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->samples.unreadable, 1);
  EXPECT_EQ((*open_records_dataset(folder.path("packed"), 2))->size(), good);
  EXPECT_THAT(
      std::string(pack_records(*source, folder.path("none"), {.max_corrupt_share = 0.0}, events)
                      .status()
                      .message()),
      HasSubstr(absl::StrCat("more than 0 of ", good + 1,
                             " samples cannot be read; nothing was packed")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("none")));
}

TEST(Records, SetsThatAreNotWholeAreRefused) {
  const TestFolder folder;
  ASSERT_TRUE(pack_records(*numbers(12), folder.path("a"), {.shards = 3}, {}).ok());
  ASSERT_TRUE(pack_records(*numbers(15), folder.path("b"), {.shards = 3}, {}).ok());
  const auto copy = [&](const std::string& from, const std::string& to) {
    std::filesystem::copy_file(folder.path(from), folder.path(to),
                               std::filesystem::copy_options::overwrite_existing);
  };
  const std::string shard1 = contents(folder.path("a/" + shard_name(1)));
  EXPECT_EQ(open_error(folder.path("a")), "");
  EXPECT_THAT(open_error(folder.path("a"), 4), HasSubstr("label 0 is 4, the network tells 4"));
  std::filesystem::remove(folder.path("a/" + shard_name(1)));
  EXPECT_THAT(open_error(folder.path("a")), HasSubstr("shard-00001.records: cannot open"));
  copy("a/" + shard_name(2), "a/" + shard_name(1));
  EXPECT_THAT(open_error(folder.path("a")), HasSubstr("is shard 2 of 3 of another set"));
  copy("b/" + shard_name(1), "a/" + shard_name(1));
  EXPECT_THAT(open_error(folder.path("a")), HasSubstr("of another set"));
  folder.write("a/" + shard_name(1), shard1.substr(0, shard1.size() - 1));
  EXPECT_THAT(open_error(folder.path("a")), HasSubstr("has no end mark"));
  folder.write("a/" + shard_name(1), shard1.substr(0, 20));
  EXPECT_THAT(open_error(folder.path("a")), HasSubstr("too short"));
  EXPECT_THAT(open_error(folder.path("nothing")), HasSubstr("poseidon data pack"));
}

/// What no shape says, a record does not say either: an empty one would have no pixels to resize.
TEST(Records, PixelsAmongImagesAreRefused) {
  const TestFolder folder;
  const auto writer = *RecordsWriter::create(folder.path("set"));
  ASSERT_TRUE(writer->begin_shard().ok());
  ASSERT_TRUE(writer->add({.encoding = Encoding::kPixels, .label = 0}).ok());
  ASSERT_TRUE(writer->finish({0, 0, 0}, {"a"}).ok());
  EncodedSample sample;
  const absl::Status status = (*open_records_dataset(folder.path("set"), 1))->read(0, sample);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("pixels among encoded images"));
}

TEST(Records, AnySetFitsIntoTheFilesThereMayBe) {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  EXPECT_EQ(shard_limit(kGiB, 0), kGiB);
  EXPECT_EQ(shard_limit(kGiB, 255), kGiB);
  EXPECT_EQ(shard_limit(kGiB, 256), 2 * kGiB);
  EXPECT_EQ(shard_limit(kGiB, 287), 2 * kGiB);
  EXPECT_EQ(shard_limit(kGiB, 288), 4 * kGiB);
  std::uint64_t all = 0;
  for (std::int64_t shard = 0; shard < kMaxShards; ++shard) all += shard_limit(kGiB, shard);
  EXPECT_GT(all, std::uint64_t{16} << 40);
  EXPECT_EQ(shard_limit(std::uint64_t{1} << 63, 511), std::numeric_limits<std::uint64_t>::max());
}

/// Each single byte: the set is refused, or the sample at fault is, and no other.
TEST(Records, EveryDamagedByteIsFound) {
  const TestFolder folder;
  ASSERT_TRUE(pack_records(*numbers(6), folder.path("set"), {.shards = 1}, {}).ok());
  const std::string path = "set/" + shard_name(0);
  const std::string good = contents(folder.path(path));
  const std::size_t records_end = kRecordFileHeaderBytes + 6 * (kRecordHeaderBytes + 6);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x41);
    folder.write(path, bad);
    const auto set = open_records_dataset(folder.path("set"), 5);
    if (i < kRecordFileHeaderBytes || i >= records_end) {
      EXPECT_TRUE(absl::IsDataLoss(set.status())) << "byte " << i << ": " << set.status();
      continue;
    }
    ASSERT_TRUE(set.ok()) << set.status();
    const auto hit =
        static_cast<std::int64_t>((i - kRecordFileHeaderBytes) / (kRecordHeaderBytes + 6));
    EncodedSample sample;
    for (std::int64_t s = 0; s < 6; ++s) {
      const absl::Status status = (*set)->read(s, sample);
      EXPECT_EQ(absl::IsDataLoss(status), s == hit) << "byte " << i << ", sample " << s;
    }
  }
}

/// Bytes that lie about themselves, with good checksums, never crash or allocate without bound.
TEST(Records, SurvivesHostileIndexes) {
  SplitMix64 random(5);
  RecordIndex index;
  index.offsets = {16, 38, 60};
  index.labels = {1, 2};
  index.info = {.shard = 0, .shards = 1, .samples = 2, .set = 7, .sample_shape = {1, 2, 3}};
  const std::string good = encode_record_index(index);
  const auto decode = [](const std::string& text) -> absl::Status {
    std::vector<std::uint8_t> bytes(text.begin(), text.end());
    const std::span<const std::uint8_t> all(bytes);
    const std::uint64_t file_bytes = 60 + bytes.size();
    const auto footer = decode_record_footer(all.last(kRecordFooterBytes), file_bytes);
    if (!footer.ok()) return footer.status();
    return decode_record_index(all.first(footer->index_bytes()), *footer).status();
  };
  ASSERT_TRUE(decode(good).ok());
  const auto with_checksums = [](std::string text) {
    const std::size_t footer = text.size() - kRecordFooterBytes;
    const auto store = [&](std::size_t at, std::size_t begin, std::size_t end) {
      const std::vector<std::uint8_t> part(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                           text.begin() + static_cast<std::ptrdiff_t>(end));
      const std::uint32_t crc = crc32c(part);
      for (std::size_t i = 0; i < 4; ++i) text[at + i] = static_cast<char>(crc >> (8 * i));
    };
    store(footer + 20, 0, footer);
    store(footer + 28, footer, footer + 28);
    return text;
  };
  ASSERT_TRUE(decode(with_checksums(good)).ok());
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (std::uint64_t i = 0, changes = 1 + random.below(3); i < changes; ++i) {
      bad[random.below(bad.size())] = static_cast<char>(random.next());
    }
    const absl::Status status = decode(with_checksums(bad));
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
    refused += status.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 2500);
}

}  // namespace
}  // namespace poseidon::records_test
