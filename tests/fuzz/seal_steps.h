#pragma once

// The steps of an input of seal_fuzz.cc, for it and for its seeds.

#include <cstdint>

namespace poseidon::fuzz {

/// A byte modulo kSealSteps; divided by it, it says which of the strangers. "Says": a byte, the
/// text's size, and the text.
enum class SealStep : std::uint8_t {
  kOpen,              ///< both ends' pipes begin anew, and nothing is changed
  kOneSays,           ///< over its pipe
  kOtherSays,         ///< over its pipe
  kOneSaysMuch,       ///< so many times 5,000 bytes: several records
  kOneEnds,           ///< says why
  kOneIsAlive,        ///< and says so
  kChange,            ///< how, and a number: what becomes of the bytes that are said next
  kRaw,               ///< says bytes to the other end, in the one's place
  kCallerConnects,    ///< an honest caller, through the agreement
  kCallerSays,        ///< to the server
  kServerSays,        ///< to the caller
  kCallerGoes,        ///< lets go of its stream
  kStrangerConnects,  ///< to where streams are agreed on
  kStrangerSays,      ///< there
  kStrangerAsks,      ///< for a version, this one or one next to it
  kStrangerGoes,
};
inline constexpr int kSealSteps = 16;

}  // namespace poseidon::fuzz
