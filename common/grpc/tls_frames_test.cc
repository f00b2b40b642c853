// Both ends of a stream's frames without a connection: bytes go from one to the other in whatever
// pieces, and a test may change them on their way.

#include "common/grpc/tls_frames.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/messages.h"

namespace poseidon::tls_frames_test {
namespace {

using testing_support::message_of;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::size_t kMaxMessage = std::size_t{4} << 20;
constexpr std::size_t kAll = std::size_t{1} << 30;

/// Takes all pending bytes of the writer, `most` bytes at a time.
std::string drain(FrameWriter& writer, std::size_t most = kAll) {
  std::string all;
  for (auto bytes = writer.to_send(); !bytes.empty(); bytes = writer.to_send()) {
    const std::size_t here = std::min(most, bytes.size());
    all.append(reinterpret_cast<const char*>(bytes.data()), here);
    writer.sent(here);
  }
  return all;
}

/// Sends `bytes` bytes.
std::string send(FrameWriter& writer, std::size_t bytes) {
  std::string all;
  while (all.size() < bytes) {
    const auto next = writer.to_send();
    const std::size_t here = std::min(next.size(), bytes - all.size());
    all.append(reinterpret_cast<const char*>(next.data()), here);
    writer.sent(here);
  }
  return all;
}

struct Heard {
  std::vector<std::string> messages, openings;
  std::optional<absl::Status> end;
  std::string broken;
  std::size_t too_large = 0;
  bool is_over() const { return end || !broken.empty() || too_large > 0; }
};

void bring(FrameReader& reader, std::string_view bytes, Heard& heard, std::size_t most = kAll) {
  while (!bytes.empty()) {
    const absl::Span<std::byte> room = reader.room();
    ASSERT_FALSE(room.empty());
    ASSERT_GE(reader.lacks(), 1U);
    const std::size_t here = std::min({most, room.size(), bytes.size()});
    std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), here, room.begin());
    reader.received(here);
    bytes.remove_prefix(here);
    const auto incoming = reader.next();
    if (!incoming) continue;
    ASSERT_FALSE(heard.is_over()) << "nothing comes after the last";
    if (const auto* message = std::get_if<Bytes>(&*incoming)) {
      heard.messages.push_back(joined(*message));
    } else if (const auto* opening = std::get_if<FrameReader::Opening>(&*incoming)) {
      heard.openings.push_back(opening->text);
    } else if (const auto* end = std::get_if<FrameReader::Ended>(&*incoming)) {
      heard.end = end->why;
    } else if (const auto* broken = std::get_if<FrameReader::Broken>(&*incoming)) {
      heard.broken = broken->what;
    } else {
      heard.too_large = std::get<FrameReader::TooLarge>(*incoming).bytes;
    }
  }
}

std::string text_of(std::size_t size, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random.next());
  return text;
}

class Frames : public ::testing::Test {
 protected:
  FrameWriter writer_;
  FrameReader reader_{FrameReader::End::kCaller, kMaxMessage};
  Heard heard_;
};

TEST_F(Frames, MessagesOfAnySizeComeInAnyPieces) {
  SplitMix64 random(7);
  const std::size_t frame = kMaxFrameBytes;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{300}, kTlsRecordBytes - kFrameHeaderBytes,
        kTlsRecordBytes, frame - 1, frame, frame + 1, 2 * frame, 3 * frame + 17, kMaxMessage}) {
    for (const std::size_t pieces : {kAll, std::size_t{65536}, std::size_t{977}}) {
      const std::string text = text_of(size, size);
      const std::size_t front = std::min<std::size_t>(size, random.next() % 20000);
      writer_.send(message_of(text.substr(0, front), text.substr(front)));
      EXPECT_TRUE(writer_.has_message());
      heard_ = {};
      bring(reader_, drain(writer_, pieces), heard_, pieces);
      EXPECT_FALSE(writer_.has_message());
      ASSERT_EQ(heard_.messages.size(), 1U);
      EXPECT_EQ(heard_.messages[0], text);
    }
  }
}

TEST_F(Frames, APayloadIsHeldUntilAllOfItIsSent) {
  auto owner = std::make_shared<std::string>(1000000, 'p');
  const std::weak_ptr<std::string> held = owner;
  writer_.send({.prefix = "m",
                .payload = {reinterpret_cast<const std::byte*>(owner->data()), owner->size()},
                .payload_owner = std::move(owner)});
  (void)send(writer_, 999999);
  EXPECT_FALSE(held.expired());
  (void)drain(writer_);
  EXPECT_TRUE(held.expired());
}

TEST_F(Frames, FullFramesFillTlsRecords) {
  writer_.send(message_of("prefix", std::string(2 * kMaxFrameBytes, 'm')));
  const std::size_t first = writer_.to_send().size();
  EXPECT_EQ(first % kTlsRecordBytes, 0U) << "what is copied to stand beside the header";
  writer_.sent(first);
  EXPECT_EQ(first + writer_.to_send().size(), kMaxFrameBytes + kFrameHeaderBytes);
}

TEST_F(Frames, AnOpeningComesFirstAndOnce) {
  FrameReader answerer(FrameReader::End::kAnswerer, kMaxMessage);
  writer_.send_opening("what for");
  writer_.send(message_of("m"));
  bring(answerer, drain(writer_), heard_, 3);
  EXPECT_THAT(heard_.openings, ElementsAre("what for"));
  EXPECT_THAT(heard_.messages, ElementsAre("m"));
  writer_.send_opening("again");
  bring(answerer, drain(writer_), heard_);
  EXPECT_EQ(heard_.broken, "an opening of a stream that is open already");

  Heard none;
  FrameReader other(FrameReader::End::kAnswerer, kMaxMessage);
  FrameWriter hasty;
  hasty.send(message_of("m"));
  bring(other, drain(hasty), none);
  EXPECT_EQ(none.broken, "a stream whose first frame is not an opening");
  EXPECT_THAT(none.messages, IsEmpty());
}

TEST_F(Frames, AnEndSaysWhyAndIsTheLast) {
  writer_.send(message_of("m", std::string(2000000, 'm')));
  writer_.send_end(absl::FailedPreconditionError("we go"));
  writer_.send_end(absl::OkStatus());
  const std::string all = drain(writer_);
  EXPECT_TRUE(writer_.has_sent_end());
  writer_.send_alive();
  EXPECT_TRUE(writer_.to_send().empty());
  bring(reader_, all + "anything", heard_);
  EXPECT_EQ(heard_.messages.size(), 1U);
  EXPECT_EQ(heard_.end, absl::FailedPreconditionError("we go"));
}

TEST_F(Frames, ReasonsAreCut) {
  const auto end = decode_end(encode_end(absl::AbortedError(std::string(10000, 'w'))));
  ASSERT_TRUE(end);
  EXPECT_EQ(*end, absl::AbortedError(std::string(4096, 'w')));
  EXPECT_FALSE(decode_end("abc"));
  EXPECT_FALSE(decode_end(std::string("\x11\0\0\0", 4))) << "no such code";
  EXPECT_FALSE(decode_end(std::string(kMaxEndBytes + 1, '\0')));
}

TEST_F(Frames, ADroppedMessageEndsWithItsFrameAndIsNotDelivered) {
  writer_.send(message_of("m", std::string(3 * kMaxFrameBytes, 'm')));
  std::string all = send(writer_, 100000);
  writer_.drop_message();
  writer_.send_end(absl::OkStatus());
  all += drain(writer_);
  EXPECT_FALSE(writer_.has_message());
  EXPECT_LT(all.size(), kMaxFrameBytes + 100U);
  bring(reader_, all, heard_);
  EXPECT_THAT(heard_.messages, IsEmpty());
  EXPECT_EQ(heard_.end, absl::OkStatus());
}

TEST_F(Frames, AMessageThatIsDroppedBeforeItBeginsIsNotSent) {
  writer_.send(message_of("m"));
  writer_.drop_message();
  writer_.drop_message();
  EXPECT_TRUE(writer_.to_send().empty());
}

TEST_F(Frames, SignsOfLifeComeBetweenFrames) {
  writer_.send(message_of("m", std::string(2 * kMaxFrameBytes, 'm')));
  std::string all = send(writer_, 100000);
  writer_.send_alive();
  all += drain(writer_);
  bring(reader_, all, heard_);
  EXPECT_EQ(heard_.messages.size(), 1U);
  EXPECT_EQ(reader_.frames(), 4U) << "three of the message";
}

TEST_F(Frames, WhatIsTooLargeIsToldByItsHeaderAndTheRestIsThrownAway) {
  writer_.send(message_of("", std::string(kMaxMessage + 1, 'm')));
  bring(reader_, drain(writer_), heard_);
  EXPECT_EQ(heard_.too_large, kMaxMessage + 1);
  EXPECT_THAT(heard_.messages, IsEmpty());
}

std::string frame(int kind, std::uint32_t says, const std::string& text = "", char padding = '\0') {
  std::string all{static_cast<char>(kind), padding, '\0', '\0'};
  for (int i = 0; i < 4; ++i) all.push_back(static_cast<char>(says >> (8 * i)));
  return all + text;
}

TEST_F(Frames, NonsenseIsToldAndNothingFollows) {
  const std::string half_a_message =
      frame(1, static_cast<std::uint32_t>(kMaxFrameBytes + 10), std::string(kMaxFrameBytes, 'm'));
  for (const std::string& bytes :
       {frame(5, 0), frame(255, 0), frame(4, 1), frame(2, 10), frame(3, 3, "abc"), frame(3, 5000),
        frame(3, 4, "\xff\xff\xff\xff"), frame(1, 1, "m", 'p'), half_a_message + frame(1, 10),
        half_a_message + frame(2, 11)}) {
    FrameReader reader(FrameReader::End::kCaller, kMaxMessage);
    Heard heard;
    bring(reader, bytes + frame(1, 2, "mm"), heard);
    EXPECT_NE(heard.broken, "");
    EXPECT_THAT(heard.messages, IsEmpty());
  }
}

}  // namespace
}  // namespace poseidon::tls_frames_test
