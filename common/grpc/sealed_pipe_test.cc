// Both ends of a sealed stream without a connection: bytes go from one to the other in whatever
// pieces, and somebody may change them on their way.

#include "common/grpc/sealed_pipe.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/messages.h"

namespace poseidon::sealed_pipe_test {
namespace {

using testing_support::message_of;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::size_t kMaxMessage = std::size_t{4} << 20;

SealEnds secrets_of(std::uint8_t sends, std::uint8_t receives) {
  SealEnds ends;
  ends.sends.fill(std::byte{sends});
  ends.receives.fill(std::byte{receives});
  return ends;
}

/// All that the pipe has to send, `most` bytes at a time.
std::string drain(SealedPipe& pipe, std::size_t most = std::size_t{1} << 30) {
  std::string all;
  for (auto bytes = pipe.to_send(); !bytes.empty(); bytes = pipe.to_send()) {
    const std::size_t here = std::min(most, bytes.size());
    all.append(reinterpret_cast<const char*>(bytes.data()), here);
    pipe.sent(here);
  }
  return all;
}

/// What an end has heard.
struct Heard {
  std::vector<std::string> messages;
  std::optional<absl::Status> end;
  std::string broken;
  std::size_t too_large = 0;
  bool is_over() const { return end || !broken.empty() || too_large > 0; }
};

/// Brings bytes to the pipe, `most` at a time.
void bring(SealedPipe& pipe, std::string_view bytes, Heard& heard,
           std::size_t most = std::size_t{1} << 30) {
  while (!bytes.empty()) {
    const absl::Span<std::byte> room = pipe.room();
    ASSERT_FALSE(room.empty());
    const std::size_t here = std::min({most, room.size(), bytes.size()});
    std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), here, room.begin());
    pipe.received(here);
    bytes.remove_prefix(here);
    while (auto incoming = pipe.next()) {
      ASSERT_FALSE(heard.is_over()) << "nothing comes after the last";
      if (const auto* message = std::get_if<Bytes>(&*incoming)) {
        heard.messages.push_back(joined(*message));
      } else if (const auto* end = std::get_if<SealedPipe::End>(&*incoming)) {
        heard.end = end->why;
      } else if (const auto* broken = std::get_if<SealedPipe::Broken>(&*incoming)) {
        heard.broken = broken->what;
      } else {
        heard.too_large = std::get<SealedPipe::TooLarge>(*incoming).bytes;
      }
    }
  }
}

std::string text_of(std::size_t size, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random.next());
  return text;
}

class Pipes : public ::testing::Test {
 protected:
  SealedPipe sender_{secrets_of(1, 2), kMaxMessage};
  SealedPipe receiver_{secrets_of(2, 1), kMaxMessage};
  Heard heard_;
};

TEST_F(Pipes, MessagesOfAnySizeComeInAnyPieces) {
  SplitMix64 random(7);
  const std::size_t record = kMaxRecordBytes;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{300}, std::size_t{16 << 10}, record - 1, record,
        record + 1, 2 * record, 3 * record + 17, kMaxMessage}) {
    for (const std::size_t pieces : {std::size_t{1 << 30}, std::size_t{65536}, std::size_t{977}}) {
      const std::string text = text_of(size, size);
      const std::size_t front = std::min<std::size_t>(size, random.next() % 200);
      sender_.send(message_of(text.substr(0, front), text.substr(front)));
      heard_ = {};
      bring(receiver_, drain(sender_, pieces), heard_, pieces);
      ASSERT_EQ(heard_.messages.size(), 1U) << size;
      ASSERT_EQ(heard_.messages[0], text) << size;
      EXPECT_FALSE(receiver_.is_within_record());
    }
  }
  // One byte at a time.
  sender_.send(message_of("a", std::string(1000, 'b')));
  heard_ = {};
  bring(receiver_, drain(sender_, 1), heard_, 1);
  EXPECT_THAT(heard_.messages, ElementsAre("a" + std::string(1000, 'b')));
}

TEST_F(Pipes, ManySmallMessagesComeAtOnce) {
  std::string bytes;
  std::vector<std::string> said;
  for (int i = 0; i < 2000; ++i) {
    said.push_back(absl::StrCat("message ", i, std::string(static_cast<std::size_t>(i % 60), 'x')));
    sender_.send(message_of(said.back()));
    bytes += drain(sender_);
  }
  bring(receiver_, bytes, heard_);
  EXPECT_EQ(heard_.messages, said);
}

TEST_F(Pipes, SmallAndLargeOnesTakeTurns) {
  SplitMix64 random(11);
  std::string bytes;
  std::vector<std::string> said;
  for (int i = 0; i < 60; ++i) {
    const std::size_t size =
        i % 3 == 0 ? random.next() % (3 * kMaxRecordBytes) : random.next() % 90;
    said.push_back(text_of(size, static_cast<std::uint64_t>(i)));
    sender_.send(message_of("", said.back()));
    bytes += drain(sender_);
  }
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t here = std::min<std::size_t>(1 + random.next() % 400000, bytes.size() - at);
    bring(receiver_, std::string_view(bytes).substr(at, here), heard_);
    at += here;
  }
  EXPECT_EQ(heard_.messages, said);
}

TEST_F(Pipes, TheOwnerIsLetGoWhenTheLastPartIsSealed) {
  auto owner = std::make_shared<std::string>(std::string(2 * kMaxRecordBytes, 'g'));
  const std::weak_ptr<std::string> held = owner;
  OutgoingMessage message = message_of("p");
  message.payload = {reinterpret_cast<const std::byte*>(owner->data()), owner->size()};
  message.payload_owner = std::move(owner);
  sender_.send(std::move(message));
  int records = 0;
  while (sender_.has_message()) {
    EXPECT_FALSE(held.expired());
    sender_.sent(sender_.to_send().size());
    if (sender_.has_message()) sender_.to_send();
    ++records;
  }
  EXPECT_EQ(records, 2) << "the third is sealed, and not sent yet";
  EXPECT_TRUE(held.expired());
  EXPECT_FALSE(sender_.to_send().empty());
}

TEST_F(Pipes, WhoListensReadsNothing) {
  sender_.send(message_of("a text that nobody", std::string(5000, 'x')));
  const std::string first = drain(sender_);
  sender_.send(message_of("a text that nobody", std::string(5000, 'x')));
  const std::string second = drain(sender_);
  for (const std::string& seen : {first, second}) {
    EXPECT_THAT(seen, Not(HasSubstr("nobody")));
    EXPECT_THAT(seen, Not(HasSubstr("xxxx")));
    EXPECT_EQ(seen.size(), 5018 + kRecordOverheadBytes);
  }
  EXPECT_NE(first, second);
}

TEST_F(Pipes, AnEndComesAfterTheMessagesBeforeItAndIsTheLast) {
  sender_.send(message_of("last words"));
  sender_.send_end(absl::InvalidArgumentError("chunk 9: no such chunk"));
  EXPECT_FALSE(sender_.has_sent_end());
  const std::string bytes = drain(sender_);
  EXPECT_TRUE(sender_.has_sent_end());
  sender_.send_end(absl::OkStatus());
  sender_.send_alive();
  EXPECT_TRUE(sender_.to_send().empty());
  bring(receiver_, bytes + "more", heard_);
  EXPECT_THAT(heard_.messages, ElementsAre("last words"));
  EXPECT_EQ(heard_.end, absl::InvalidArgumentError("chunk 9: no such chunk"));
  EXPECT_THAT(heard_.broken, IsEmpty());
  for (int i = 0; i < 100; ++i) bring(receiver_, std::string(100000, 'm'), heard_);
}

TEST_F(Pipes, AMessageMayBeDroppedForTheEnd) {
  sender_.send(message_of("", std::string(3 * kMaxRecordBytes, 'm')));
  const absl::Span<const std::byte> first = sender_.to_send();
  std::string bytes(reinterpret_cast<const char*>(first.data()), first.size());
  sender_.sent(first.size());
  sender_.drop_message();
  sender_.send_end(absl::OkStatus());
  bytes += drain(sender_);
  EXPECT_LT(bytes.size(), 2 * kMaxRecordBytes);
  bring(receiver_, bytes, heard_);
  EXPECT_EQ(heard_.end, absl::OkStatus());
  EXPECT_THAT(heard_.messages, IsEmpty());
  EXPECT_THAT(heard_.broken, IsEmpty());
}

TEST_F(Pipes, AReasonIsCut) {
  sender_.send_end(absl::InvalidArgumentError(std::string(10000, 'r')));
  bring(receiver_, drain(sender_), heard_);
  EXPECT_EQ(heard_.end, absl::InvalidArgumentError(std::string(4096, 'r')));
}

TEST_F(Pipes, SignsOfLifeComeBetweenRecordsAndAreHeardByNobody) {
  sender_.send(message_of("", std::string(3 * kMaxRecordBytes, 'm')));
  std::string bytes;
  for (auto part = sender_.to_send(); !part.empty(); part = sender_.to_send()) {
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
    const bool is_sign = part.size() == kRecordOverheadBytes;
    sender_.sent(part.size());
    if (!is_sign && sender_.has_message()) sender_.send_alive();
  }
  bring(receiver_, bytes, heard_);
  ASSERT_EQ(heard_.messages.size(), 1U);
  EXPECT_EQ(heard_.messages[0], std::string(3 * kMaxRecordBytes, 'm'));
  EXPECT_EQ(receiver_.opened(), 5U) << "three parts, two signs";
}

TEST_F(Pipes, SaysWhatIsLacking) {
  EXPECT_EQ(receiver_.lacks(), 1U);
  sender_.send(message_of("", std::string(2 * kMaxRecordBytes + 100, 'm')));
  const std::string bytes = drain(sender_);
  bring(receiver_, std::string_view(bytes).substr(0, 3), heard_);
  EXPECT_EQ(receiver_.lacks(), 1U) << "its length is not known";
  bring(receiver_, std::string_view(bytes).substr(3, 997), heard_);
  EXPECT_EQ(receiver_.lacks(), kMaxRecordBytes + kRecordOverheadBytes - 1000) << "the first record";
  bring(receiver_, std::string_view(bytes).substr(1000, kMaxRecordBytes), heard_);
  EXPECT_EQ(receiver_.lacks(), bytes.size() - 1000 - kMaxRecordBytes) << "the message";
  bring(receiver_, std::string_view(bytes).substr(1000 + kMaxRecordBytes), heard_);
  EXPECT_EQ(receiver_.lacks(), 1U);
  EXPECT_EQ(heard_.messages.size(), 1U);
}

TEST_F(Pipes, WhatIsTooLargeIsSaidAndNotKept) {
  SealedPipe narrow(secrets_of(2, 1), 100);
  sender_.send(message_of("", std::string(100, 'm')));
  bring(narrow, drain(sender_), heard_);
  EXPECT_EQ(heard_.messages.size(), 1U);
  sender_.send(message_of("", std::string(3 * kMaxRecordBytes, 'm')));
  bring(narrow, drain(sender_), heard_);
  EXPECT_EQ(heard_.messages.size(), 1U);
  EXPECT_EQ(heard_.too_large, 3 * kMaxRecordBytes);
}

TEST_F(Pipes, WhoHasOtherSecretsOpensNothing) {
  SealedPipe thief(secrets_of(2, 3), kMaxMessage);
  sender_.send(message_of("hello"));
  bring(thief, drain(sender_), heard_);
  EXPECT_THAT(heard_.messages, IsEmpty());
  EXPECT_EQ(heard_.broken, "a message that does not open");
}

/// Messages as one end says them: the bytes of each.
std::vector<std::string> conversation(SealedPipe& sender, std::vector<std::string>& said,
                                      SplitMix64& random) {
  std::vector<std::string> bytes;
  for (int i = 0; i < 8; ++i) {
    // Some of several records.
    const std::size_t size =
        i % 3 == 1 ? kMaxRecordBytes + random.next() % 500 : random.next() % 300;
    said.push_back(text_of(size, random.next()));
    sender.send(message_of("m", said.back()));
    said.back().insert(0, "m");
    bytes.push_back(drain(sender));
  }
  return bytes;
}

TEST(SealedPipe, WhatSomebodyBetweenDoesIsNoticedAndOnlyWhatWasSaidIsHeard) {
  SplitMix64 random(3);
  for (int round = 0; round < 300; ++round) {
    SealedPipe sender(secrets_of(1, 2), kMaxMessage), receiver(secrets_of(2, 1), kMaxMessage);
    std::vector<std::string> said;
    std::vector<std::string> bytes = conversation(sender, said, random);
    const std::size_t victim = random.next() % 6;
    const std::uint64_t how = random.next() % 6, number = random.next();
    std::string& changed = bytes[victim];
    std::size_t intact = victim;
    switch (how) {
      case 0:  // a bit
        changed[number % changed.size()] ^= static_cast<char>(1 << (number >> 32) % 8);
        break;
      case 1:  // bytes less
        changed.erase(number % changed.size(), 1 + (number >> 32) % 40);
        break;
      case 2:  // bytes more
        changed.insert(number % changed.size(), std::string(1 + (number >> 32) % 40, 'x'));
        break;
      case 3:  // none of it
        changed.clear();
        break;
      case 4:  // twice
        changed += std::string(changed);
        intact = victim + 1;
        break;
      default:
        std::swap(changed, bytes[victim + 1]);
        break;
    }
    Heard heard;
    for (const std::string& each : bytes) bring(receiver, each, heard);
    // What a changed length waits for: more than any record has.
    for (int i = 0; i < 40 && heard.broken.empty(); ++i) {
      bring(receiver, std::string(kMaxRecordBytes / 20, '\0'), heard);
    }
    ASSERT_THAT(heard.broken, Not(IsEmpty())) << "round " << round << ", how " << how;
    ASSERT_FALSE(heard.end);
    ASSERT_EQ(heard.messages.size(), intact) << "round " << round << ", how " << how;
    for (std::size_t i = 0; i < intact; ++i) ASSERT_EQ(heard.messages[i], said[i]);
  }
}

TEST(SealedPipe, HeadersThatMakeNoSenseAreNotWaitedFor) {
  const auto header = [](int kind, std::uint32_t bytes, char padding = '\0') {
    std::string text{static_cast<char>(kind), padding, '\0', '\0'};
    for (int i = 0; i < 4; ++i) text.push_back(static_cast<char>(bytes >> (8 * i)));
    return text;
  };
  for (const auto& [bytes, what] : std::vector<std::pair<std::string, std::string>>{
           {header(4, 10), "a record of an unknown kind"},
           {header(255, 0), "a record of an unknown kind"},
           {header(0, 10, '\1'), "a record whose header makes no sense"},
           {header(1, 10), "a part that does not go on with the one before"},
           {header(2, 5000), "an end without a reason"},
           {header(3, 1), "a sign of life that says more"},
           {"\x16\x03\x01\x02\x01\x01\x01\x01", "a record whose header makes no sense"}}) {
    SealedPipe receiver(secrets_of(2, 1), kMaxMessage);
    Heard heard;
    bring(receiver, bytes, heard);
    EXPECT_EQ(heard.broken, what);
  }
  // And within a message.
  for (const auto& [bytes, what] : std::vector<std::pair<std::string, std::string>>{
           {header(0, 10), "a message within a message"},
           {header(1, kMaxRecordBytes - 1), "a part that does not go on with the one before"}}) {
    SealedPipe sender(secrets_of(1, 2), kMaxMessage), receiver(secrets_of(2, 1), kMaxMessage);
    sender.send(message_of("", std::string(2 * kMaxRecordBytes, 'm')));
    const absl::Span<const std::byte> first = sender.to_send();
    Heard heard;
    bring(receiver, {reinterpret_cast<const char*>(first.data()), first.size()}, heard);
    ASSERT_THAT(heard.broken, IsEmpty());
    bring(receiver, bytes, heard);
    EXPECT_EQ(heard.broken, what);
  }
}

TEST(SealedPipe, AChangedEndIsNotBelieved) {
  for (std::size_t bit = 0; bit < 8 * 60; ++bit) {
    SealedPipe sender(secrets_of(1, 2), kMaxMessage), receiver(secrets_of(2, 1), kMaxMessage);
    sender.send_end(absl::InvalidArgumentError("chunk 9: no such chunk"));
    std::string bytes = drain(sender);
    if (bit / 8 >= bytes.size()) break;
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    Heard heard;
    bring(receiver, bytes, heard);
    EXPECT_FALSE(heard.end) << bit;
  }
}

}  // namespace
}  // namespace poseidon::sealed_pipe_test
