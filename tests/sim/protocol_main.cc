// Runs the whole protocol's simulation over many seeds; on failure prints the seed, which repeats
// the run.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/sim/protocol_sim.h"

namespace {

/// Which seed it was, should an always-on check of the product end the process.
std::atomic<std::uint64_t> current_seed{0};
extern "C" void tell_seed(int signal) {
  std::fprintf(stderr, "aborted in seed %" PRIu64 "\n", current_seed.load());
  std::signal(signal, SIG_DFL);  // it comes again
}

struct Totals {
  std::int64_t runs = 0, failed = 0, done = 0, steps = 0, epochs = 0, checkpoints = 0;
  std::int64_t relay_pauses = 0;
  double virtual_seconds = 0.0;
  std::map<std::string, std::int64_t> faults;
};

void print(const poseidon::sim::ProtocolOutcome& outcome, std::uint64_t seed, const char* program,
           bool loses, bool all) {
  std::string text;
  for (const std::string& line : outcome.trace) text += "  " + line + "\n";
  text += "  cluster: " + outcome.description + "\n";
  if (!outcome.ok) {
    text += "seed " + std::to_string(seed) + " failed after " + std::to_string(outcome.steps) +
            " steps, " + std::to_string(outcome.virtual_seconds) +
            " virtual seconds: " + outcome.failure + "\n  again: " + program +
            (loses ? " --lose-messages" : "") + " --seed " + std::to_string(seed) + "\n";
  } else if (all) {
    text += "seed " + std::to_string(seed) + ": " + outcome.end + " after " +
            std::to_string(outcome.virtual_seconds) + " virtual seconds\n";
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Every `stride`-th seed; 0 when none failed.
int run(std::uint64_t first, std::uint64_t end, std::uint64_t stride, const char* program,
        bool loses, bool verbose) {
  Totals totals;
  for (std::uint64_t seed = first; seed < end; seed += stride) {
    current_seed = seed;
    const poseidon::sim::ProtocolOutcome outcome =
        loses ? poseidon::sim::simulate_lost_message(seed, verbose)
              : poseidon::sim::simulate_protocol(seed, verbose);
    if (!outcome.ok || verbose) print(outcome, seed, program, loses, verbose);
    ++totals.runs;
    totals.failed += outcome.ok ? 0 : 1;
    totals.done += outcome.end == "done" ? 1 : 0;
    totals.steps += outcome.steps;
    totals.epochs += outcome.epochs;
    totals.checkpoints += outcome.checkpoints;
    totals.relay_pauses += outcome.relay_pauses;
    totals.virtual_seconds += outcome.virtual_seconds;
    for (const auto& [name, count] : outcome.faults) totals.faults[name] += count;
  }
  std::string faults;
  for (const auto& [name, count] : totals.faults) {
    faults += (faults.empty() ? "" : ", ") + name + " " + std::to_string(count);
  }
  std::printf("seeds from %" PRIu64 ": %" PRId64 " failed, %" PRId64 " jobs done; %" PRId64
              " steps, %.0f virtual seconds, %" PRId64 " epochs, %" PRId64 " checkpoints, %" PRId64
              " pauses by relays; %s\n",
              first, totals.failed, totals.done, totals.steps, totals.virtual_seconds,
              totals.epochs, totals.checkpoints, totals.relay_pauses, faults.c_str());
  // A simulation in which nothing goes wrong, or nearly everything, shows nothing. Of 150 jobs 139
  // are done, with three checkpoints each.
  const bool shows_little = !loses && end - first >= 100 &&
                            (totals.faults.size() < 12 || totals.done < totals.runs * 3 / 4 ||
                             totals.checkpoints < totals.runs || totals.relay_pauses == 0);
  if (shows_little) std::printf("too little has happened\n");
  return totals.failed > 0 || shows_little ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A whole cluster, with coordinator and recovery, in one thread, decided by a seed");
  std::uint64_t first_seed = 1, seeds = 100, seed = 0, processes = 2;
  app.add_option("--first-seed", first_seed, "first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "how many seeds")->capture_default_str();
  app.add_option("--seed", seed, "this seed alone, with its whole trace");
  app.add_option("--processes", processes, "that share the seeds")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  bool loses = false;
  app.add_flag("--lose-messages", loses,
               "no other fault than one message of the data path that never arrives");
  CLI11_PARSE(app, argc, argv);
  for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, tell_seed);
  if (seed != 0) return run(seed, seed + 1, 1, argv[0], loses, /*verbose=*/true);
  std::vector<pid_t> children;
  for (std::uint64_t i = 0; i < processes; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const int failed = run(first_seed + i, first_seed + seeds, processes, argv[0], loses, false);
      std::fflush(stdout);
      _exit(failed);
    }
    if (child < 0) return 1;
    children.push_back(child);
  }
  int result = 0;
  for (const pid_t child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) result = 1;
  }
  std::printf("%" PRIu64 " seeds: %s\n", seeds, result == 0 ? "every invariant held" : "FAILED");
  return result;
}
