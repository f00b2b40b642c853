#pragma once

// Frames of a stream on a TLS connection: encodes messages to frames and decodes received bytes.
// Pure. TLS keeps the bytes secret and unchanged; frames only tell messages apart.
//
// Called by: common/grpc/tls_sockets.h, which moves the bytes. Calls: nothing.
//
// A frame is a header of kFrameHeaderBytes (kind, three zeros, 32 bits, little endian) and a text:
//
// | kind   | the 32 bits                          | text                                       |
// |--------|--------------------------------------|--------------------------------------------|
// | kOpen  | bytes of the text                    | StreamOpening (stream.proto), caller only  |
// | kBegin | bytes of a message                   | its first kMaxFrameBytes                   |
// | kMore  | bytes that are left of that message  | its next kMaxFrameBytes                    |
// | kEnd   | bytes of the text                    | the end's status; the last frame           |
// | kAlive | 0                                    | none: the sender is well                   |
//
// The caller's first frame is kOpen. A message is delivered only when all of it has arrived; kEnd
// within a message discards the part that has arrived. Header and text of a full frame have
// kMaxFrameBytes + kFrameHeaderBytes bytes.
//
// Memory: a message that arrives is allocated as its first frame says, max_message_bytes at most.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/transport/transport.h"

namespace poseidon {

inline constexpr std::size_t kFrameHeaderBytes = 8;
/// The plain text of one TLS record.
inline constexpr std::size_t kTlsRecordBytes = std::size_t{16} << 10;
/// Of a frame's text. With its header it fills whole TLS records.
inline constexpr std::size_t kMaxFrameBytes = (std::size_t{512} << 10) - kFrameHeaderBytes;
/// Of an end's text: a code and a reason.
inline constexpr std::size_t kMaxEndBytes = 4 + 4096;
/// Of an opening's text: a method and a token.
inline constexpr std::size_t kMaxOpeningBytes = 4096;

enum class FrameKind : std::uint8_t { kOpen, kBegin, kMore, kEnd, kAlive };

/// A status as an end's text. The reason is cut after 4096 bytes.
std::string encode_end(const absl::Status& status);
/// Nothing where the text is not one that encode_end() makes.
std::optional<absl::Status> decode_end(std::string_view text);

/// Not for concurrent use.
class FrameWriter {
 public:
  /// Before anything else.
  void send_opening(std::string text);
  /// One at a time. Its owner is let go once sent() has taken all of it.
  void send(OutgoingMessage message);
  /// After the message that is being sent; nothing is sent later.
  void send_end(const absl::Status& why);
  /// Sends the message no further than to the end of its present frame.
  void drop_message();
  /// Before the next frame.
  void send_alive();
  bool has_message() const { return outgoing_.has_value(); }
  /// The next bytes for the connection, the same until sent() takes some of them; none when there
  /// is nothing to send.
  absl::Span<const std::byte> to_send();
  /// The connection took the first `bytes` of to_send().
  void sent(std::size_t bytes);
  bool has_sent_end() const { return end_sent_; }

 private:
  struct Outgoing {
    OutgoingMessage message;
    std::size_t taken = 0;  ///< bytes of it, by frames
    std::size_t size() const { return message.prefix.size() + message.payload.size(); }
  };
  void begin_frame(FrameKind kind, std::size_t bytes);
  void begin_message_frame();

  std::optional<std::string> opening_;
  std::optional<Outgoing> outgoing_;
  std::optional<absl::Status> end_;
  bool frame_is_message_ = false;  ///< the present frame
  bool is_dropping_ = false;       ///< the message ends with the present frame
  bool alive_ = false, end_begun_ = false, end_sent_ = false;
  std::string front_;                 ///< of the present frame: header, and text that is copied
  std::size_t front_sent_ = 0;        ///< of it
  absl::Span<const std::byte> rest_;  ///< of the present frame: payload that is sent from its place
};

/// Not for concurrent use.
class FrameReader {
 public:
  enum class End : std::uint8_t { kCaller, kAnswerer };
  /// `us`: which end reads.
  FrameReader(End us, std::size_t max_message_bytes);

  struct Opening {
    std::string text;
  };
  /// How the other end ends the stream. Nothing follows it.
  struct Ended {
    absl::Status why;
  };
  /// The bytes are no frames. Nothing follows it.
  struct Broken {
    std::string what;
  };
  /// A message of `bytes` bytes, more than the limit. Nothing follows it.
  struct TooLarge {
    std::size_t bytes = 0;
  };
  using Incoming = std::variant<Opening, Bytes, Ended, Broken, TooLarge>;

  /// Where the next bytes go; never empty while next() has nothing.
  absl::Span<std::byte> room();
  /// The first `bytes` of room() are filled. next() must have nothing.
  void received(std::size_t bytes);
  /// The event that the last received() has completed.
  std::optional<Incoming> next();
  /// Bytes that the present frame still lacks, 1 at least.
  std::size_t lacks() const;
  /// Frames that have arrived whole: signs of life.
  std::uint64_t frames() const { return frames_; }

 private:
  void take_header();
  void take_frame();
  void begin_message(std::size_t bytes);
  void over(Incoming last);

  const std::size_t max_message_bytes_;
  bool expects_opening_;
  std::array<std::byte, kFrameHeaderBytes> header_{};
  std::size_t header_filled_ = 0;
  FrameKind kind_ = FrameKind::kAlive;
  std::string text_;                      ///< of a frame that is part of no message
  std::shared_ptr<std::byte[]> message_;  ///< null between messages
  std::size_t message_bytes_ = 0, message_filled_ = 0;
  std::size_t frame_left_ = 0;  ///< bytes of the present frame's text
  std::optional<Incoming> ready_;
  bool is_over_ = false;  ///< the rest of the message is discarded
  std::uint64_t frames_ = 0;
};

}  // namespace poseidon
