#pragma once

// Aborts the process on a programming error.
//
// Called by: every wing. Calls: nothing.

#include <cstdio>
#include <cstdlib>

/// Always-on check for programming errors (never for bad input: that is an absl::Status).
/// Prints the condition, place and a word of explanation, then aborts.
#define POSEIDON_CHECK(condition, message)                                                  \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, __LINE__, #condition, \
                   static_cast<const char*>(message));                                      \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
