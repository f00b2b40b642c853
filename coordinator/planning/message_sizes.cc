#include "coordinator/planning/message_sizes.h"
#include "coordinator/planning/local_groups.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "common/transport/windows.h"

namespace poseidon {
namespace {

/// When links have this much more to do than devices, urgent messages may wait, and links must
/// never be idle. VGG19-22K on 16 nodes at 25 GbE, where links have 1.02 times as much to do:
/// 0.1181 s with full windows, 0.1128 s with short ones, 0.1007 s with the chunks that go with
/// them. From 1.8 on short windows cost up to 5 % (bench/RESULTS.md, `modern`); between nothing was
/// measured.
constexpr double kClearlyBusier = 1.1;

bool links_are_clearly_busier(const TimeRuleResult& result) {
  double link_s = 0.0;
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    const LayerPrediction& layer = result.layers[i];
    link_s += result.schemes[i] == Scheme::kSfb ? layer.sfb_s : layer.ps_s;
  }
  return link_s > kClearlyBusier * result.prediction.compute_s;
}

/// What the model of an iteration leaves out where chunks shrink and the window does not: a chunk
/// that is wanted at once waits for whole ones, two on the way to each other machine, one that is
/// on the wire and one that keeps it busy meanwhile, and its answer for as many. All of them share
/// the slowest card. (In the model what is under way is a fluid; without this it takes 2 MiB for
/// Inception-V3 on 16 nodes at 25 GbE, with which an iteration takes 1.07 times as long as with
/// 256 KiB: bench/RESULTS.md.)
double wait_behind_others_s(const TimeRuleInput& input, std::int64_t chunk_bytes) {
  double rate = std::numeric_limits<double>::infinity();
  for (const auto* nics : {&input.calibration->workers, &input.calibration->servers}) {
    for (const NicSpeed& nic : *nics) {
      rate = std::min({rate, nic.send_bytes_per_s, nic.receive_bytes_per_s});
    }
  }
  const std::size_t contributors = count_contributors(input.leaders, input.worker_addresses.size());
  const std::size_t nodes = std::max(contributors, input.server_addresses.size());
  const auto bytes = static_cast<double>(chunk_bytes_on_wire(chunk_bytes, input.wire_type));
  return 2.0 * 2.0 * static_cast<double>(nodes - 1) * bytes / rate;
}

/// The first of `seconds` within kLeastGainOfSmallerMessages of the least.
std::size_t first_near_least(const std::vector<double>& seconds) {
  const double limit =
      *std::min_element(seconds.begin(), seconds.end()) / (1.0 - kLeastGainOfSmallerMessages);
  const auto chosen = std::find_if(seconds.begin(), seconds.end(),
                                   [limit](double candidate) { return candidate <= limit; });
  return static_cast<std::size_t>(chosen - seconds.begin());
}

}  // namespace

MessageSizes choose_message_sizes(TimeRuleInput input, bool may_choose_chunks) {
  input.free.clear();
  const auto play = [&input](std::int64_t chunk_bytes, std::int64_t window_bytes) {
    input.chunk_bytes = chunk_bytes;
    input.window_bytes = window_bytes;
    return apply_time_rule(input);
  };
  const std::int64_t largest = input.chunk_bytes;
  MessageSizes sizes{largest, kWorkerWindowBytes};
  const TimeRuleResult full = play(largest, kWorkerWindowBytes);
  if (!links_are_clearly_busier(full) &&
      play(largest, kShortWorkerWindowBytes).prediction.iteration_s <=
          full.prediction.iteration_s) {
    sizes.window_bytes = kShortWorkerWindowBytes;
  }
  if (!may_choose_chunks) return sizes;

  std::vector<double> seconds;
  for (int halved = 0; halved <= 3; ++halved) {
    const std::int64_t chunk_bytes = largest >> halved;
    seconds.push_back(play(chunk_bytes, sizes.window_bytes).prediction.iteration_s +
                      wait_behind_others_s(input, chunk_bytes));
  }
  const std::size_t chosen = first_near_least(seconds);
  sizes.chunk_bytes = largest >> chosen;
  if (chosen + 1 < seconds.size() || sizes.window_bytes != kShortWorkerWindowBytes) return sizes;

  // Below 256 KiB a chunk costs its two ends more than its bytes do. That pays only where links
  // are not what all wait for, and with windows that shrink as well: two messages may go to
  // each other machine in any case, so that of larger chunks they are all that is under way.
  seconds.clear();
  for (int halved = 0; halved <= 2; ++halved) {
    seconds.push_back(
        play(sizes.chunk_bytes >> halved, sizes.window_bytes >> halved).prediction.iteration_s);
  }
  const std::size_t smaller = first_near_least(seconds);
  return {sizes.chunk_bytes >> smaller, sizes.window_bytes >> smaller};
}

}  // namespace poseidon
