#include "tests/sim/protocol_scenario.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/wire/factor_wire.h"
#include "common/wire/store_wire.h"
#include "common/wire/wire.h"
#include "nlohmann/json.hpp"
#include "tests/sim/method_transport.h"
#include "tests/sim/sim_control.h"

namespace poseidon::sim {
namespace {

using Json = nlohmann::json;

/// Bad luck has a limit: after this many cuts the network is perfect.
constexpr std::int64_t kMaxNetworkFaults = 40;
constexpr std::uint64_t kMostFaults = 7;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random_.below(bound));
  }
  /// One out of `n`.
  bool one_in(std::uint32_t n) { return below(n) == 0; }
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[random_.below(choices.size())];
  }
  Milliseconds up_to_ms(std::uint32_t longest) { return Milliseconds(below(longest + 1)); }

 private:
  SplitMix64 random_;
};

Json draw_network(Dice& dice, ProtocolScenario& s) {
  Json layers = Json::array();
  const auto add_fc = [&layers](const char* name, std::uint32_t outputs) {
    layers.push_back({{"name", name}, {"type", "fully_connected"}, {"outputs", outputs}});
  };
  // With chunks of 4 KiB the second one has two or three.
  add_fc("fc1", dice.one_of({30u, 20u}));
  s.has_statistics = dice.one_in(3);
  if (s.has_statistics) layers.push_back({{"name", "bn"}, {"type", "batch_norm"}});
  if (!dice.one_in(4)) add_fc("fc2", dice.one_of({40u, 75u}));
  add_fc("fc3", 5);
  layers.push_back({{"name", "loss"}, {"type", "softmax_cross_entropy"}});
  return {{"name", "net"}, {"input", {6}}, {"layers", layers}};
}

Json draw_optimizer(Dice& dice) {
  Json json = {{"type", dice.one_of({"sgd", "sgd", "adam", "lars"})}, {"learning_rate", 0.01}};
  if (json["type"] == "sgd") json["momentum"] = dice.one_of({0.0, 0.9});
  if (dice.one_in(4)) json["clip_norm"] = dice.one_of({0.5, 5.0});
  return json;
}

Json draw_sync(Dice& dice, const Json& network) {
  Json schemes = Json::object();
  for (const Json& layer : network["layers"]) {
    if (layer["type"] != "fully_connected") continue;
    schemes[layer["name"].get<std::string>()] = dice.one_of({"ps", "ps", "sfb"});
  }
  return {{"scheme", schemes},
          {"cost", "bytes"},
          {"chunk_bytes", 4096},
          {"wire_dtype", dice.one_of({"fp32", "fp32", "bf16", "fp16"})}};
}

void draw_job(Dice& dice, ProtocolScenario& s) {
  const Json network = draw_network(dice, s);
  s.iterations = 6 + dice.below(15);
  s.checkpoint_every = dice.one_of<std::int64_t>({0, 2, 3, 5});
  s.replicas = s.servers > 1 && dice.one_in(2) ? 2 : 1;
  s.replace_timeout = Milliseconds(dice.one_of({1000, 4000, 12000}));
  // Either exactly this number, or all that join.
  s.min_workers = 1 + dice.below(s.workers);
  if (dice.one_in(2)) s.wanted_workers = s.workers;
  // Whoever wants two copies waits for two servers.
  if (dice.one_in(2) || s.replicas > 1) s.wanted_servers = s.servers;
  const bool global = dice.one_in(4);
  Json job = {
      {"name", "sim"},
      {"model", network},
      {"data", {{"train", {{"format", "idx"}, {"images", "/images"}, {"labels", "/labels"}}}}},
      {"batch_size", global ? 12 : 1 + dice.below(3)},
      {"iterations", s.iterations},
      {"optimizer", draw_optimizer(dice)},
      {"sync", draw_sync(dice, network)},
      {"checkpoint",
       {{"every_iterations", s.checkpoint_every},
        {"keep", 1 + dice.below(3)},
        {"replicas", s.replicas}}},
      {"membership",
       {{"min_workers", s.min_workers},
        {"max_workers", std::max<std::int64_t>(s.workers + dice.below(2), 1)},
        {"batch", global ? "global" : "per_worker"},
        {"replace_timeout_ms", s.replace_timeout.count() / 1000000}}}};
  if (dice.one_in(2)) {
    job["data"]["test"] = job["data"]["train"];
    job["test_every_iterations"] = dice.one_of({0, 2, 3});
  }
  s.job_json = job.dump();
}

Fault draw_fault(Dice& dice, Nanoseconds training) {
  static const std::array<const char*, 12> kMessages = {"assign",     "ready",  "start",    "save",
                                                        "checkpoint", "halt",   "halted",   "stop",
                                                        "join",       "resume", "finished", "test"};
  Fault fault;
  // Nodes that leave are drawn by themselves, so that seeds from before stay what they were.
  fault.kind = static_cast<FaultKind>(dice.below(static_cast<std::uint32_t>(FaultKind::kGoodbye)));
  if (dice.one_in(2)) {
    const auto longest = static_cast<std::uint32_t>(training.count() / 1000000);
    fault.at = dice.up_to_ms(longest);
  } else {
    fault.message = kMessages[dice.below(kMessages.size())];
    fault.count = static_cast<int>(1 + dice.below(12));
    fault.at = Nanoseconds(dice.up_to_ms(dice.one_of({0u, 20u, 200u})));
  }
  fault.target = dice.below(100);
  fault.other = dice.one_in(2) ? 0 : 1 + dice.below(100);
  // Around what waits for it: a cut (50 ms), the lease (3 s), the keepalive (10 s).
  fault.lasts = Nanoseconds(dice.up_to_ms(dice.one_of({300u, 2500u, 6000u, 25000u})));
  fault.comes_back = !dice.one_in(4);
  fault.silently = dice.one_in(3);
  return fault;
}

}  // namespace

const char* fault_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKillWorker:
      return "kill a worker";
    case FaultKind::kFreezeWorker:
      return "freeze a worker";
    case FaultKind::kKillServer:
      return "kill a server";
    case FaultKind::kLoseServer:
      return "lose a server";
    case FaultKind::kFreezeServer:
      return "freeze a server";
    case FaultKind::kFillDisk:
      return "fill a disk";
    case FaultKind::kDamage:
      return "damage pieces";
    case FaultKind::kPart:
      return "part";
    case FaultKind::kKillCoordinator:
      return "kill the coordinator";
    case FaultKind::kFreezeCoordinator:
      return "freeze the coordinator";
    case FaultKind::kNewWorker:
      return "a new worker";
    case FaultKind::kSave:
      return "save";
    case FaultKind::kStop:
      return "stop";
    case FaultKind::kGoodbye:
      return "goodbye";
    case FaultKind::kDrain:
      return "drain";
    case FaultKind::kCount:
      break;
  }
  return "?";
}

bool ProtocolScenario::has(FaultKind kind) const {
  return std::any_of(faults.begin(), faults.end(),
                     [kind](const Fault& fault) { return fault.kind == kind; });
}

ProtocolScenario draw_protocol_scenario(std::uint64_t seed) {
  Dice dice(mix_seed(seed, 11));
  ProtocolScenario s;
  s.workers = 1 + dice.below(4);
  s.servers = 1 + dice.below(3);
  draw_job(dice, s);
  s.server_timeout = Milliseconds(dice.one_of({4000, 10000, 30000}));
  s.max_compute = Nanoseconds(Milliseconds(dice.one_of({15, 60, 200})));
  s.slowest_disk = Nanoseconds(Milliseconds(dice.one_of({1, 20, 150})));
  s.pending_limit_bytes = dice.one_of<std::int64_t>({1, 5000, 1000000000});
  s.network.min_delay = Nanoseconds(1 + dice.below(1000));
  s.network.max_delay = s.network.min_delay + dice.one_of({Milliseconds(2), Milliseconds(25)});
  s.network.cut = dice.one_of({0.0, 0.0, 0.0005, 0.004});
  s.network.duplicate = dice.one_of({0.0, 0.02, 0.2});
  s.network.reorder = dice.one_of({0.0, 0.05, 0.3});
  s.network.max_faults = 1 << 20;
  if (s.network.cut > 0.0) {
    s.network.max_faults = kMaxNetworkFaults;
    s.network.duplicate = s.network.reorder = 0.0;  // they would use them up
  }
  // About how long it trains; what comes later than that meets nothing.
  const Nanoseconds training = s.iterations * 3 * s.max_compute + Milliseconds(1500);
  const std::uint64_t faults = dice.below(kMostFaults + 1);
  for (std::uint64_t i = 0; i < faults; ++i) s.faults.push_back(draw_fault(dice, training));
  if (faults > 1 && !dice.one_in(3)) {
    // Some recovery, so that the others may fall into it.
    s.faults[0].kind = dice.one_of({FaultKind::kKillWorker, FaultKind::kKillWorker,
                                    FaultKind::kKillServer, FaultKind::kKillCoordinator});
    s.faults[0].message.clear();
    s.faults[0].at = training / 2;
    s.faults[0].comes_back = true;
  }
  Dice leavers(mix_seed(seed, 31));
  while (leavers.one_in(3)) {
    s.faults.push_back(draw_fault(leavers, training));
    s.faults.back().kind = leavers.one_of({FaultKind::kGoodbye, FaultKind::kDrain});
  }
  s.workers_per_host = dice.one_of({1u, 1u, 2u, 3u});
  s.servers_beside_workers = dice.one_in(2);
  return s;
}

namespace {

/// Streams of the data path by the end of their listener's address, and the kinds of their
/// messages.
struct Method {
  const char* suffix;
  const char* name;
  std::vector<const char*> kinds;  ///< by number; "" where there is none
};

const std::vector<Method>& methods() {
  static const std::vector<const char*> chunks = {"",           "push",  "initialise", "pull",
                                                  "parameters", "norms", "totals"};
  static const std::vector<Method> all = {
      {kRelaySuffix, "relay ", chunks},
      {kFactorSuffix, "factors ", {"", "hello", "gradient", "input", "digest", "parameters"}},
      {kStoreSuffix,
       "store ",
       {"", "read", "write", "data", "stored", "error", "hold", "read held"}},
      {"", "data ", chunks}};
  return all;
}

std::uint32_t kind_number(const Method& method, const Bytes& message) {
  if (std::string_view(method.suffix) == kStoreSuffix) {
    const auto decoded = decode_store(message);
    return decoded.ok() ? static_cast<std::uint32_t>(decoded->header.operation) : 0;
  }
  if (std::string_view(method.suffix) == kFactorSuffix) {
    const auto decoded = decode_factor(message);
    return decoded.ok() ? static_cast<std::uint32_t>(decoded->header.kind) : 0;
  }
  const auto decoded = decode_chunk(message);
  return decoded.ok() ? static_cast<std::uint32_t>(decoded->header.kind) : 0;
}

}  // namespace

std::string message_kind(const std::string& address, const Bytes& message) {
  if (address == kCoordinatorAddress || address == kUploadAddress) return "";
  for (const Method& method : methods()) {
    if (!absl::EndsWith(address, method.suffix)) continue;
    const std::uint32_t kind = kind_number(method, message);
    if (kind == 0 || kind >= method.kinds.size()) return "";
    return absl::StrCat(method.name, method.kinds[kind]);
  }
  return "";
}

ProtocolScenario draw_lost_message_scenario(std::uint64_t seed) {
  ProtocolScenario s = draw_protocol_scenario(seed);
  s.faults.clear();
  s.network.cut = s.network.duplicate = s.network.reorder = 0.0;
  std::vector<std::string> kinds;
  for (const Method& method : methods()) {
    for (const char* kind : method.kinds) {
      if (*kind != '\0') kinds.push_back(absl::StrCat(method.name, kind));
    }
  }
  Dice dice(mix_seed(seed, 21));
  s.lost.push_back({.kind = kinds[seed % kinds.size()],
                    .count = static_cast<int>(1 + dice.below(dice.one_of({1u, 4u, 40u, 200u})))});
  return s;
}

std::string describe(const Fault& fault) {
  const auto ms = [](Nanoseconds time) { return time.count() / 1000000; };
  return absl::StrCat(
      fault_name(fault.kind), " ", fault.target,
      fault.kind == FaultKind::kPart ? absl::StrCat(" and ", fault.other) : "", " ", ms(fault.at),
      " ms after ",
      fault.message.empty() ? "the beginning" : absl::StrCat(fault.message, " ", fault.count),
      " for ", ms(fault.lasts), " ms", fault.comes_back ? "" : ", for ever if killed",
      fault.silently ? ", silently" : "");
}

std::string describe(const ProtocolScenario& s) {
  std::vector<std::string> faults;
  for (const Fault& fault : s.faults) faults.push_back(describe(fault));
  for (const LostMessage& lost : s.lost) {
    faults.push_back(absl::StrCat("lose message ", lost.count, " of kind ", lost.kind));
  }
  return absl::StrCat(s.workers, " workers, ", s.workers_per_host, " to a host, ",
                      s.servers_beside_workers ? "and " : "besides ", s.servers,
                      " servers, wanted ", s.wanted_workers, " and ", s.wanted_servers, ", cut ",
                      s.network.cut, ", server timeout ", s.server_timeout.count() / 1000000,
                      " ms, job ", s.job_json, "\n    ", absl::StrJoin(faults, "\n    "));
}

}  // namespace poseidon::sim
