#pragma once

// Runs a last action when Ctrl-C, SIGTERM or the end of its terminal ends a command.
//
// Called by: commands, before they wait. Calls: the action; then the signal ends the process as
// usual.

#include <signal.h>

#include <array>
#include <filesystem>
#include <string>

namespace poseidon {

/// While an AtSignal lives, SIGINT, SIGTERM and SIGHUP run its action before they end the process.
/// A signal that the process ignores, as a shell's background job may, stays ignored. One at a
/// time; made and destroyed on one thread.
class AtSignal {
 public:
  struct LastThings {
    std::string words;             ///< to stderr; "" for none
    std::filesystem::path remove;  ///< a file; "" for none
  };
  explicit AtSignal(LastThings things);
  ~AtSignal();
  AtSignal(const AtSignal&) = delete;
  AtSignal& operator=(const AtSignal&) = delete;

 private:
  struct Saved {
    int number;
    struct sigaction action {};
  };
  std::array<Saved, 3> saved_{{{SIGINT}, {SIGTERM}, {SIGHUP}}};
};

}  // namespace poseidon
