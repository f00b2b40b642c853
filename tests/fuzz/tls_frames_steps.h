#pragma once

// The steps of an input of tls_frames_fuzz.cc, for it and for its seeds.

#include <cstdint>

namespace poseidon::fuzz {

/// A byte modulo kFrameSteps. "Sends" a text: a byte, the text's size, and the text.
enum class FrameStep : std::uint8_t {
  kAnew,       ///< both ends begin anew, and nothing is changed
  kOpens,      ///< sends an opening
  kSends,      ///< sends a message
  kSendsMuch,  ///< a message of so many times 5,000 bytes, in several frames
  kDrops,      ///< begins a message of several frames, sends so many times 5,000 bytes, drops it
  kIsAlive,    ///< says so
  kEnds,       ///< sends why
  kChange,     ///< how, and a number: what becomes of the bytes that are sent next
  kRaw,        ///< bytes in the sender's place
  kPieces,     ///< from now on bytes arrive so many at a time
};
inline constexpr int kFrameSteps = 10;

}  // namespace poseidon::fuzz
