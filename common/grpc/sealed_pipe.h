#pragma once

// One end of a sealed stream, all but its connection: which bytes to send, and what to make of
// those that came. Pure.
//
// Before: common/grpc/sealed_transport.h has agreed on the secrets; a stream has messages to send.
// After: common/grpc/sealed_sockets.h moves the bytes (common/grpc/memory_carrier.h: in memory).
//
// On the connection are records, one after the other: a header of kSealHeaderBytes, what it says
// sealed (common/security/seal.h), and the seal's tag. The header (kind, three zeros, 32 bits,
// little endian) is part of what the seal proves.
//
// | kind   | the 32 bits are                             | sealed                             |
// |--------|---------------------------------------------|------------------------------------|
// | kBegin | a message's bytes                           | the first kMaxRecordBytes of them  |
// | kMore  | the bytes that are left of that message     | the next kMaxRecordBytes of them   |
// | kEnd   | bytes of the reason; nothing comes after it | the reason (common/grpc/seal_wire.h) |
// | kAlive | 0                                           | nothing: the sender is well        |
//
// A large message goes in parts for the sake of caches: what was just encrypted is still in one
// when it is sent, and what was received when it is opened. Nobody hears of a message before all of
// its parts have opened; one whose parts an end follows is heard of by nobody.
//
// Memory: a message that comes has its own, allocated as its first record says, max_message_bytes
// at most; beside it one record each way.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/security/seal.h"
#include "common/transport/transport.h"

namespace poseidon {

inline constexpr std::size_t kSealHeaderBytes = 8;
/// Of a record's text. It and what it is sealed to fit into a core's second cache, and what a
/// record costs beside its bytes does not show.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{256} << 10;
/// What a record is longer than its text.
inline constexpr std::size_t kRecordOverheadBytes = kSealHeaderBytes + kSealTagBytes;

/// One end's.
struct SealEnds {
  SealSecret sends;
  SealSecret receives;
};

enum class RecordKind : std::uint8_t { kBegin = 0, kMore = 1, kEnd = 2, kAlive = 3 };

/// Not for concurrent use.
class SealedPipe {
 public:
  SealedPipe(const SealEnds& secrets, std::size_t max_message_bytes);

  // ---- what goes out ----

  /// At the end of those before it. Its owner is let go once all of it is sealed.
  void send(OutgoingMessage message);
  /// After the message before it; nothing may be sent later.
  void send_end(const absl::Status& why);
  /// The message that is being sent is not sent to its end: the other end hears nothing of it.
  void drop_message() { outgoing_.reset(); }
  /// Before the next record, where none waits to be sent.
  void send_alive();
  /// Whether a message is not sealed to its end yet. The next may wait until it is.
  bool has_message() const { return outgoing_.has_value(); }
  /// The next bytes for the connection, until sent() has taken all of them; none when there is
  /// nothing to send.
  absl::Span<const std::byte> to_send();
  /// The connection took so many of to_send().
  void sent(std::size_t bytes);
  /// Whether the end, and so all, is with the connection.
  bool has_sent_end() const { return end_sent_; }

  // ---- what comes in ----

  /// How the other end ends the stream. The last that comes.
  struct End {
    absl::Status why;
  };
  /// What came is not what the other end sealed, or makes no sense; nothing comes after it.
  struct Broken {
    std::string what;
  };
  /// The other end sends more than is accepted; nothing comes after it.
  struct TooLarge {
    std::size_t bytes = 0;
  };
  using Incoming = std::variant<Bytes, End, Broken, TooLarge>;

  /// Where the next bytes from the connection go; never empty while next() has nothing.
  absl::Span<std::byte> room();
  /// So many of room() are filled.
  void received(std::size_t bytes);
  /// What has come, in its order; nothing until more is received.
  std::optional<Incoming> next();
  /// Whether bytes have come of a record that is not whole.
  bool is_within_record() const { return in_begin_ != in_end_; }
  /// What has to come before next() can have a message; 1 where that is not known.
  std::size_t lacks() const;
  /// Records that opened so far: a sign of life.
  std::uint64_t opened() const { return opened_; }

 private:
  struct Outgoing {
    OutgoingMessage message;
    std::size_t sealed = 0;  ///< bytes of it
    std::size_t size() const { return message.prefix.size() + message.payload.size(); }
  };
  struct Header {
    std::uint8_t kind = 0;
    bool is_padded = false;  ///< its zeros are zeros
    std::uint32_t bytes = 0;
    std::size_t text_bytes() const { return std::min<std::size_t>(bytes, kMaxRecordBytes); }
    std::size_t record_bytes() const { return kRecordOverheadBytes + text_bytes(); }
  };

  void seal(RecordKind kind, std::size_t bytes, absl::Span<const std::byte> front,
            absl::Span<const std::byte> rest);
  void seal_part();
  std::optional<Header> header() const;
  /// Nothing while it makes sense here.
  std::optional<std::string> objection(const Header& header) const;
  /// Of a whole record at in_begin_; nothing when it was a part of something.
  std::optional<Incoming> take(const Header& header);
  Incoming over(Incoming last);

  const std::size_t max_message_bytes_;
  Sealer sealer_;
  Opener opener_;

  std::optional<Outgoing> outgoing_;
  std::optional<absl::Status> end_;  ///< to be sealed yet
  bool alive_ = false;
  bool end_sealed_ = false, end_sent_ = false;
  std::unique_ptr<std::byte[]> out_;  ///< a record
  std::size_t out_capacity_ = 0, out_begin_ = 0, out_end_ = 0;

  std::unique_ptr<std::byte[]> in_;  ///< what came and is not opened
  std::size_t in_capacity_ = 0, in_begin_ = 0, in_end_ = 0;
  std::shared_ptr<std::byte[]> message_;  ///< null between messages
  std::size_t message_bytes_ = 0, message_filled_ = 0;
  bool is_over_ = false;  ///< nothing comes any more
  std::uint64_t opened_ = 0;
};

}  // namespace poseidon
