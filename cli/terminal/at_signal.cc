#include "cli/terminal/at_signal.h"

#include <unistd.h>

#include <utility>

namespace poseidon {
namespace {

AtSignal::LastThings last_things;  // read by the handler, while it is one

/// Calls only async-signal-safe functions.
void end_by(int number) {
  if (!last_things.remove.empty()) static_cast<void>(::unlink(last_things.remove.c_str()));
  static_cast<void>(!::write(STDERR_FILENO, last_things.words.data(), last_things.words.size()));
  ::raise(number);
}

}  // namespace

AtSignal::AtSignal(LastThings things) {
  last_things = std::move(things);
  struct sigaction action {};
  action.sa_handler = end_by;
  action.sa_flags = SA_RESETHAND | SA_NODEFER;
  for (Saved& saved : saved_) {
    ::sigaction(saved.number, nullptr, &saved.action);
    if (saved.action.sa_handler == SIG_DFL) ::sigaction(saved.number, &action, nullptr);
  }
}

AtSignal::~AtSignal() {
  for (const Saved& saved : saved_) ::sigaction(saved.number, &saved.action, nullptr);
}

}  // namespace poseidon
