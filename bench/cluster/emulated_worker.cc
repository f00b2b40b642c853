// poseidon-bench-worker: a poseidon-worker on a device that is emulated (emulated_executor.h);
// everything but the device is poseidon-worker's.

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/cluster/emulated_executor.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/files/file_io.h"
#include "worker/worker_main.h"

namespace poseidon::bench {
namespace {

constexpr std::int64_t kMaxProfileBytes = 16 << 20;

struct Options {
  std::string profile;
  double slow = 1.0;
  Overlap overlap = Overlap::kAll;
  std::string shared_file;
};

absl::StatusOr<Engine> open_engine(const Options& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::string json, read_file(options.profile, kMaxProfileBytes));
  auto emulation = std::make_shared<EmulationOptions>();
  POSEIDON_ASSIGN_OR_RETURN(emulation->profile, parse_device_profile(json, options.profile));
  emulation->slow = options.slow;
  emulation->overlap = options.overlap;
  emulation->shared_file = options.shared_file;
  static const SystemClock clock;  // its zero is steady_clock's
  emulation->clock = &clock;
  emulation->sleep_until = [](Nanoseconds when) {
    std::this_thread::sleep_until(std::chrono::steady_clock::time_point(when));
  };
  return Engine{.device = absl::StrCat("emulated (", emulation->profile.device, ", slowed by ",
                                       options.slow, ")"),
                .make_executor = [emulation](const NetSpec& net, const ExecutorOptions& executor) {
                  return make_emulated_executor(net, executor, *emulation);
                }};
}

}  // namespace
}  // namespace poseidon::bench

int main(int argc, char** argv) {
  using poseidon::bench::Overlap;
  CLI::App app("A worker of Poseidon that computes nothing but takes as long as a device would.",
               "poseidon-bench-worker");
  poseidon::bench::Options options;
  app.add_option("--profile", options.profile, "how long the device takes: JSON")->required();
  app.add_option("--slow", options.slow, "slow motion: all of the device's times by this factor")
      ->check(CLI::Range(0.001, 100000.0))
      ->capture_default_str();
  const std::map<std::string, Overlap> overlaps = {
      {"all", Overlap::kAll}, {"backward", Overlap::kBackward}, {"none", Overlap::kNone}};
  app.add_option(
         "--overlap", options.overlap,
         "what gradients and parameters travel beside: all; backward: forward waits for all "
         "parameters; none: besides, gradients wait for the end of backward")
      ->transform(CLI::CheckedTransformer(overlaps));
  app.add_option("--shared-tensors", options.shared_file,
                 "a file in which all workers of this machine have their parameters and gradients");
  return poseidon::worker_main(argc, argv, app,
                               [&options] { return poseidon::bench::open_engine(options); });
}
