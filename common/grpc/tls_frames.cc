#include "common/grpc/tls_frames.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

void append_u32(std::string& text, std::uint32_t number) {
  for (int i = 0; i < 4; ++i) text.push_back(static_cast<char>(number >> (8 * i)));
}

absl::Span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void append(std::string& text, absl::Span<const std::byte> bytes) {
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

std::string encode_end(const absl::Status& status) {
  std::string text;
  append_u32(text, static_cast<std::uint32_t>(status.code()));
  return text.append(from_absl(status.message()).substr(0, kMaxEndBytes - 4));
}

std::optional<absl::Status> decode_end(std::string_view text) {
  if (text.size() < 4 || text.size() > kMaxEndBytes) return std::nullopt;
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    code |= std::uint32_t{static_cast<unsigned char>(text[i])} << (8 * i);
  }
  if (code > static_cast<std::uint32_t>(absl::StatusCode::kUnauthenticated)) return std::nullopt;
  return absl::Status(static_cast<absl::StatusCode>(code), to_absl(text.substr(4)));
}

// ---- sending ----

void FrameWriter::send_opening(std::string text) {
  POSEIDON_CHECK(text.size() <= kMaxOpeningBytes, "a method and a token are short");
  opening_ = std::move(text);
}

void FrameWriter::send(OutgoingMessage message) {
  POSEIDON_CHECK(!outgoing_ && !end_ && !end_begun_, "one message at a time, none after the end");
  outgoing_.emplace(Outgoing{.message = std::move(message)});
  POSEIDON_CHECK(outgoing_->size() <= std::numeric_limits<std::uint32_t>::max(),
                 "messages are chunks");
}

void FrameWriter::send_end(const absl::Status& why) {
  if (!end_begun_ && !end_) end_ = why;
}

void FrameWriter::drop_message() {
  const bool is_within_its_frame =
      frame_is_message_ && (front_sent_ < front_.size() || !rest_.empty());
  if (outgoing_ && is_within_its_frame) {
    is_dropping_ = true;
  } else {
    outgoing_.reset();
  }
}

void FrameWriter::send_alive() { alive_ = !end_begun_; }

absl::Span<const std::byte> FrameWriter::to_send() {
  if (front_sent_ == front_.size() && rest_.empty()) {
    front_.clear();
    front_sent_ = 0;
    if (opening_) {
      begin_frame(FrameKind::kOpen, opening_->size());
      front_ += *std::exchange(opening_, std::nullopt);
    } else if (std::exchange(alive_, false)) {
      begin_frame(FrameKind::kAlive, 0);
    } else if (outgoing_) {
      begin_message_frame();
    } else if (end_) {
      const std::string reason = encode_end(*std::exchange(end_, std::nullopt));
      begin_frame(FrameKind::kEnd, reason.size());
      front_ += reason;
      end_begun_ = true;
    }
  }
  if (front_sent_ < front_.size()) return as_bytes(front_).subspan(front_sent_);
  return rest_;
}

void FrameWriter::sent(std::size_t bytes) {
  if (front_sent_ < front_.size()) {
    front_sent_ += bytes;
    POSEIDON_CHECK(front_sent_ <= front_.size(), "no more than there was");
  } else {
    rest_ = rest_.subspan(bytes);
  }
  if (front_sent_ < front_.size() || !rest_.empty()) return;
  if (std::exchange(frame_is_message_, false) &&
      (std::exchange(is_dropping_, false) || outgoing_->taken == outgoing_->size())) {
    outgoing_.reset();
  }
  end_sent_ = end_begun_;
}

void FrameWriter::begin_frame(FrameKind kind, std::size_t bytes) {
  front_.push_back(static_cast<char>(kind));
  front_.append(3, '\0');
  append_u32(front_, static_cast<std::uint32_t>(bytes));
}

/// Copies as much of the payload as fills the TLS record of the header and the prefix.
void FrameWriter::begin_message_frame() {
  const std::size_t begin = outgoing_->taken, left = outgoing_->size() - begin;
  const std::size_t end = begin + std::min(left, kMaxFrameBytes);
  const absl::Span<const std::byte> prefix = as_bytes(outgoing_->message.prefix.view());
  begin_frame(begin == 0 ? FrameKind::kBegin : FrameKind::kMore, left);
  const std::size_t prefix_begin = std::min(begin, prefix.size());
  const std::size_t prefix_end = std::min(end, prefix.size());
  append(front_, prefix.subspan(prefix_begin, prefix_end - prefix_begin));
  const std::size_t payload_begin = begin - prefix_begin, payload_end = end - prefix_end;
  rest_ = outgoing_->message.payload.subspan(payload_begin, payload_end - payload_begin);
  const std::size_t over = front_.size() % kTlsRecordBytes;
  const std::size_t copied = std::min(rest_.size(), over == 0 ? 0 : kTlsRecordBytes - over);
  append(front_, rest_.first(copied));
  rest_ = rest_.subspan(copied);
  outgoing_->taken = end;
  frame_is_message_ = true;
}

// ---- receiving ----

FrameReader::FrameReader(End us, std::size_t max_message_bytes)
    : max_message_bytes_(max_message_bytes), expects_opening_(us == End::kAnswerer) {}

absl::Span<std::byte> FrameReader::room() {
  if (is_over_) {
    text_.resize(kTlsRecordBytes);
    return {reinterpret_cast<std::byte*>(text_.data()), text_.size()};
  }
  if (header_filled_ < kFrameHeaderBytes) {
    return absl::MakeSpan(header_).subspan(header_filled_);
  }
  if (kind_ == FrameKind::kBegin || kind_ == FrameKind::kMore) {
    return {message_.get() + message_filled_, frame_left_};
  }
  return {reinterpret_cast<std::byte*>(text_.data()) + (text_.size() - frame_left_), frame_left_};
}

void FrameReader::received(std::size_t bytes) {
  if (is_over_) return;
  POSEIDON_CHECK(!ready_, "what has arrived is taken first");
  if (header_filled_ < kFrameHeaderBytes) {
    header_filled_ += bytes;
    if (header_filled_ < kFrameHeaderBytes) return;
    take_header();
  } else {
    POSEIDON_CHECK(bytes <= frame_left_, "no more than there was room for");
    frame_left_ -= bytes;
    if (kind_ == FrameKind::kBegin || kind_ == FrameKind::kMore) message_filled_ += bytes;
  }
  if (!is_over_ && frame_left_ == 0) take_frame();
}

std::optional<FrameReader::Incoming> FrameReader::next() {
  return std::exchange(ready_, std::nullopt);
}

std::size_t FrameReader::lacks() const {
  if (is_over_ || header_filled_ < kFrameHeaderBytes) return 1;
  return std::max<std::size_t>(frame_left_, 1);
}

void FrameReader::take_header() {
  std::uint32_t bytes = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    bytes |= std::to_integer<std::uint32_t>(header_[4 + i]) << (8 * i);
  }
  if ((header_[1] | header_[2] | header_[3]) != std::byte{0}) {
    return over(Broken{"a frame with an invalid header"});
  }
  kind_ = static_cast<FrameKind>(header_[0]);
  if (expects_opening_ != (kind_ == FrameKind::kOpen)) {
    return over(Broken{expects_opening_ ? "a stream whose first frame is not an opening"
                                        : "an opening of a stream that is open already"});
  }
  const bool is_within_message = message_ != nullptr;
  frame_left_ = bytes;
  switch (kind_) {
    case FrameKind::kBegin:
      if (is_within_message) return over(Broken{"a message within a message"});
      if (bytes > max_message_bytes_) return over(TooLarge{bytes});
      return begin_message(bytes);
    case FrameKind::kMore:
      if (!is_within_message || bytes != message_bytes_ - message_filled_) {
        return over(Broken{"a part that does not continue the message before it"});
      }
      frame_left_ = std::min<std::size_t>(bytes, kMaxFrameBytes);
      return;
    case FrameKind::kEnd:
      if (bytes > kMaxEndBytes) return over(Broken{"an end without a reason"});
      break;
    case FrameKind::kOpen:
      if (bytes > kMaxOpeningBytes) return over(Broken{"an opening that is too long"});
      break;
    case FrameKind::kAlive:
      if (bytes != 0) return over(Broken{"a keepalive frame with a payload"});
      break;
    default:
      return over(Broken{"a frame of an unknown kind"});
  }
  text_.resize(frame_left_);
}

void FrameReader::begin_message(std::size_t bytes) {
  message_bytes_ = bytes;
  message_filled_ = 0;
  message_ = std::make_shared_for_overwrite<std::byte[]>(bytes);
  frame_left_ = std::min(bytes, kMaxFrameBytes);
}

void FrameReader::take_frame() {
  ++frames_;
  header_filled_ = 0;
  switch (kind_) {
    case FrameKind::kOpen:
      expects_opening_ = false;
      ready_ = Opening{std::move(text_)};
      text_.clear();
      break;
    case FrameKind::kBegin:
    case FrameKind::kMore: {
      if (message_filled_ < message_bytes_) break;
      Bytes bytes;
      if (message_bytes_ > 0) {
        bytes.pieces.push_back(absl::Span<const std::byte>(message_.get(), message_bytes_));
      }
      bytes.owner = std::exchange(message_, nullptr);
      ready_ = std::move(bytes);
      break;
    }
    case FrameKind::kEnd:
      if (auto why = decode_end(text_)) {
        over(Ended{*std::move(why)});
      } else {
        over(Broken{"an end without a reason"});
      }
      break;
    case FrameKind::kAlive:
      break;
  }
}

void FrameReader::over(Incoming last) {
  is_over_ = true;
  message_.reset();
  ready_ = std::move(last);
}

}  // namespace poseidon
