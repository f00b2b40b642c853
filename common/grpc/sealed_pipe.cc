#include "common/grpc/sealed_pipe.h"

#include <array>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/grpc/seal_wire.h"

namespace poseidon {
namespace {

/// Enough for many small messages in one read.
constexpr std::size_t kFirstInBytes = std::size_t{16} << 10;
/// A record that lacks more is read alone, so that the next begins where the buffer does.
constexpr std::size_t kReadAloneBytes = std::size_t{8} << 10;
/// A whole record and the header of the next.
constexpr std::size_t kMaxInBytes = kMaxRecordBytes + kRecordOverheadBytes + kSealHeaderBytes;

using HeaderBytes = std::array<std::byte, kSealHeaderBytes>;

HeaderBytes encode_header(RecordKind kind, std::uint32_t bytes) {
  HeaderBytes header{static_cast<std::byte>(kind)};
  for (std::size_t i = 0; i < 4; ++i) header[4 + i] = static_cast<std::byte>(bytes >> (8 * i));
  return header;
}

absl::Span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// The part of `bytes` that is within [begin, end) of something that they begin at `at` of.
absl::Span<const std::byte> part(absl::Span<const std::byte> bytes, std::size_t at,
                                 std::size_t begin, std::size_t end) {
  const std::size_t from = std::clamp(begin, at, at + bytes.size()) - at;
  const std::size_t to = std::clamp(end, at, at + bytes.size()) - at;
  return bytes.subspan(from, to - from);
}

Bytes owned(std::shared_ptr<std::byte[]> memory, std::size_t size) {
  Bytes bytes;
  if (size > 0) bytes.pieces.push_back(absl::Span<const std::byte>(memory.get(), size));
  bytes.owner = std::move(memory);
  return bytes;
}

}  // namespace

SealedPipe::SealedPipe(const SealEnds& secrets, std::size_t max_message_bytes)
    : max_message_bytes_(max_message_bytes), sealer_(secrets.sends), opener_(secrets.receives) {}

// ---- what goes out ----

void SealedPipe::send(OutgoingMessage message) {
  POSEIDON_CHECK(!outgoing_ && !end_ && !end_sealed_, "one message at a time, none after the end");
  outgoing_.emplace(Outgoing{.message = std::move(message)});
  POSEIDON_CHECK(outgoing_->size() <= std::numeric_limits<std::uint32_t>::max(),
                 "messages are chunks");
}

void SealedPipe::send_end(const absl::Status& why) {
  if (!end_sealed_ && !end_) end_ = why;
}

void SealedPipe::send_alive() { alive_ = !end_sealed_; }

absl::Span<const std::byte> SealedPipe::to_send() {
  if (out_begin_ == out_end_) {
    if (std::exchange(alive_, false)) {
      seal(RecordKind::kAlive, 0, {}, {});
    } else if (outgoing_) {
      seal_part();
    } else if (end_) {
      const std::string reason = encode_seal_end(*std::exchange(end_, std::nullopt));
      seal(RecordKind::kEnd, reason.size(), bytes_of(reason), {});
      end_sealed_ = true;
    }
  }
  return {out_.get() + out_begin_, out_end_ - out_begin_};
}

void SealedPipe::sent(std::size_t bytes) {
  POSEIDON_CHECK(bytes <= out_end_ - out_begin_, "no more than there was");
  out_begin_ += bytes;
  if (out_begin_ == out_end_ && end_sealed_) end_sent_ = true;
}

void SealedPipe::seal_part() {
  const OutgoingMessage& message = outgoing_->message;
  const std::size_t begin = outgoing_->sealed, left = outgoing_->size() - begin;
  const std::size_t end = begin + std::min(left, kMaxRecordBytes);
  const absl::Span<const std::byte> prefix = bytes_of(message.prefix.view());
  seal(begin == 0 ? RecordKind::kBegin : RecordKind::kMore, left, part(prefix, 0, begin, end),
       part(message.payload, prefix.size(), begin, end));
  outgoing_->sealed = end;
  if (end == outgoing_->size()) outgoing_.reset();
}

void SealedPipe::seal(RecordKind kind, std::size_t bytes, absl::Span<const std::byte> front,
                      absl::Span<const std::byte> rest) {
  const std::size_t record_bytes = front.size() + rest.size() + kRecordOverheadBytes;
  if (out_capacity_ < record_bytes) {
    // Streams on which payloads stay in shared memory never have large records.
    out_capacity_ =
        record_bytes <= kFirstInBytes ? kFirstInBytes : kMaxRecordBytes + kRecordOverheadBytes;
    out_ = std::make_unique_for_overwrite<std::byte[]>(out_capacity_);
  }
  const HeaderBytes header = encode_header(kind, static_cast<std::uint32_t>(bytes));
  std::copy(header.begin(), header.end(), out_.get());
  const std::array<absl::Span<const std::byte>, 2> text{front, rest};
  sealer_.seal(header, text, out_.get() + kSealHeaderBytes);
  out_begin_ = 0;
  out_end_ = record_bytes;
}

// ---- what comes in ----

absl::Span<std::byte> SealedPipe::room() {
  if (is_over_) in_begin_ = in_end_ = 0;  // what comes now is for nobody
  const std::size_t have = in_end_ - in_begin_;
  const std::optional<Header> known = header();
  const std::size_t whole = known ? known->record_bytes() : kSealHeaderBytes;
  if (in_begin_ + whole + kSealHeaderBytes > in_capacity_ || in_begin_ == in_end_) {
    std::unique_ptr<std::byte[]> before;
    if (whole + kSealHeaderBytes > in_capacity_) {
      in_capacity_ = whole + kSealHeaderBytes <= kFirstInBytes ? kFirstInBytes : kMaxInBytes;
      before = std::exchange(in_, std::make_unique_for_overwrite<std::byte[]>(in_capacity_));
    }
    const std::byte* const from = (before == nullptr ? in_ : before).get() + in_begin_;
    if (have > 0) std::copy(from, from + have, in_.get());
    in_begin_ = 0;
    in_end_ = have;
  }
  std::size_t room = in_capacity_ - in_end_;
  if (whole > have + kReadAloneBytes) room = std::min(room, whole - have + kSealHeaderBytes);
  return {in_.get() + in_end_, room};
}

void SealedPipe::received(std::size_t bytes) {
  POSEIDON_CHECK(bytes <= in_capacity_ - in_end_, "no more than there was room for");
  in_end_ += bytes;
}

std::size_t SealedPipe::lacks() const {
  const std::size_t have = in_end_ - in_begin_;
  std::size_t whole = 0;
  if (message_ != nullptr) {
    const std::size_t left = message_bytes_ - message_filled_;
    const std::size_t records = (left + kMaxRecordBytes - 1) / kMaxRecordBytes;
    whole = left + records * kRecordOverheadBytes;
  } else if (const std::optional<Header> known = header()) {
    whole = known->record_bytes();
  }
  return whole > have ? whole - have : 1;
}

std::optional<SealedPipe::Header> SealedPipe::header() const {
  if (in_end_ - in_begin_ < kSealHeaderBytes) return std::nullopt;
  const std::span<const std::byte> bytes(in_.get() + in_begin_, kSealHeaderBytes);
  Header header{.kind = std::to_integer<std::uint8_t>(bytes[0]),
                .is_padded = (bytes[1] | bytes[2] | bytes[3]) == std::byte{0}};
  for (std::size_t i = 0; i < 4; ++i) {
    header.bytes |= std::to_integer<std::uint32_t>(bytes[4 + i]) << (8 * i);
  }
  return header;
}

std::optional<std::string> SealedPipe::objection(const Header& header) const {
  if (!header.is_padded) return "a record whose header makes no sense";
  const bool is_within_message = message_ != nullptr;
  switch (static_cast<RecordKind>(header.kind)) {
    case RecordKind::kBegin:
      if (is_within_message) return "a message within a message";
      return std::nullopt;
    case RecordKind::kMore:
      if (!is_within_message || header.bytes != message_bytes_ - message_filled_) {
        return "a part that does not go on with the one before";
      }
      return std::nullopt;
    case RecordKind::kEnd:
      if (header.bytes > kMaxSealEndBytes) return "an end without a reason";
      return std::nullopt;
    case RecordKind::kAlive:
      if (header.bytes != 0) return "a sign of life that says more";
      return std::nullopt;
  }
  return "a record of an unknown kind";
}

std::optional<SealedPipe::Incoming> SealedPipe::next() {
  while (!is_over_) {
    const std::optional<Header> known = header();
    if (!known) return std::nullopt;
    if (auto why = objection(*known)) return over(Broken{*std::move(why)});
    if (in_end_ - in_begin_ < known->record_bytes()) return std::nullopt;
    if (auto incoming = take(*known)) return incoming;
  }
  return std::nullopt;
}

std::optional<SealedPipe::Incoming> SealedPipe::take(const Header& header) {
  const auto kind = static_cast<RecordKind>(header.kind);
  const std::size_t text_bytes = header.text_bytes();
  const bool is_too_large = kind == RecordKind::kBegin && header.bytes > max_message_bytes_;
  std::array<std::byte, kMaxSealEndBytes> reason;
  std::byte* text = reason.data();
  if (kind == RecordKind::kBegin) {
    message_bytes_ = is_too_large ? text_bytes : header.bytes;
    message_filled_ = 0;
    message_ = std::make_shared_for_overwrite<std::byte[]>(message_bytes_);
  }
  if (kind == RecordKind::kBegin || kind == RecordKind::kMore) {
    text = message_.get() + message_filled_;
  }
  const absl::Span<const std::byte> record(in_.get() + in_begin_, header.record_bytes());
  const absl::Span<const std::byte> sealed = record.subspan(kSealHeaderBytes);
  if (!opener_.open(record.first(kSealHeaderBytes), {&sealed, 1}, text)) {
    return over(Broken{"a message that does not open"});
  }
  ++opened_;
  in_begin_ += record.size();
  switch (kind) {
    case RecordKind::kBegin:
      if (is_too_large) return over(TooLarge{header.bytes});
      [[fallthrough]];
    case RecordKind::kMore:
      message_filled_ += text_bytes;
      if (message_filled_ < message_bytes_) return std::nullopt;
      return owned(std::exchange(message_, nullptr), message_bytes_);
    case RecordKind::kEnd: {
      const auto why = decode_seal_end({reinterpret_cast<const char*>(text), text_bytes});
      if (!why) return over(Broken{"an end without a reason"});
      return over(End{*why});
    }
    case RecordKind::kAlive:
      break;
  }
  return std::nullopt;
}

SealedPipe::Incoming SealedPipe::over(Incoming last) {
  is_over_ = true;
  message_.reset();
  return last;
}

}  // namespace poseidon
