#pragma once

// Errors: an always-on check for programming errors, and early return for absl::Status and
// absl::StatusOr, the only error channel across modules.

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Always-on check for programming errors (never for bad input: that is an absl::Status). Prints
/// the condition, the place and an explanation, then aborts.
#define POSEIDON_CHECK(condition, message)                                                  \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, __LINE__, #condition, \
                   static_cast<const char*>(message));                                      \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)

#define POSEIDON_CONCAT_INNER(a, b) a##b
#define POSEIDON_CONCAT(a, b) POSEIDON_CONCAT_INNER(a, b)

/// Returns the status of `expression` from the enclosing function if it is an error.
#define POSEIDON_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                        \
    if (absl::Status status_macro_ = (expression); !status_macro_.ok()) return status_macro_; \
  } while (false)

/// `POSEIDON_ASSIGN_OR_RETURN(auto x, f());` binds the value or returns the error.
#define POSEIDON_ASSIGN_OR_RETURN(lhs, expression) \
  POSEIDON_ASSIGN_OR_RETURN_IMPL(POSEIDON_CONCAT(status_or_, __LINE__), lhs, expression)
#define POSEIDON_ASSIGN_OR_RETURN_IMPL(holder, lhs, expression) \
  auto holder = (expression);                                   \
  if (!holder.ok()) return std::move(holder).status();          \
  lhs = *std::move(holder)
