// poseidon-bench-node: one worker or one server of a synchronisation benchmark, in one process,
// wired from the parts of poseidon-worker and poseidon-server without coordinator and engine.
//
// The driver (bench/peers/poseidon_variant.py) exchanges lines with it: JSON on stdout, and on
// stdin
//   server   "assign INDEX ADDR,ADDR,..."   takes this place in the plan           -> {"assigned":
//   INDEX}
//            "mark"                         CPU seconds are counted from here on   -> {"marked":
//            true} end of input                   -> {"cpu_seconds": S} and exit
//   worker   one line                       lets the next measured iteration begin; after the end
//   of input
//                                           iterations begin by themselves

#include <chrono>
#include <cmath>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/grpc/grpc_transport.h"
#include "common/memory/aligned_buffer.h"
#include "common/memory/tensor_memory.h"
#include "common/probes/traffic.h"
#include "common/transport/paced_transport.h"
#include "coordinator/planning/planner.h"
#include "nlohmann/json.hpp"
#include "server/shard/shard_service.h"
#include "sync/client/sync_client.h"

namespace poseidon {
namespace {

constexpr Epoch kEpoch{1};

/// A power of two: with the small whole gradients below every value is exact in float32.
constexpr double kLearningRate = 0.5;

/// One element in this many has a known gradient, the others 0; bench/peers/README.md says why.
constexpr std::int64_t kCheckedStride = 65537;

struct NodeOptions {
  std::string role;
  std::string listen = "127.0.0.1:0";
  std::vector<std::string> servers;
  std::string sizes;
  std::uint32_t rank = 0;
  std::uint32_t workers = 1;
  std::int64_t iterations = 5;
  std::int64_t timeout_s = 120;
};

/// One line for the driver, at once.
void say(const nlohmann::json& object) { std::cout << object.dump() << std::endl; }

/// Reads "NAME ELEMENTS ELEMENTS ..." lines, one layer each, in forward order.
absl::StatusOr<std::vector<PlannerLayer>> read_sizes(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--sizes ", path, " cannot be read; bench/peers/networks.py NETWORK writes such a file"));
  }
  std::vector<PlannerLayer> layers;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    PlannerLayer layer;
    if (!(words >> layer.name)) continue;
    layer.type = "tensors";
    for (std::string word; words >> word;) {
      std::int64_t elements = 0;
      if (!absl::SimpleAtoi(word, &elements) || elements < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": layer ", layer.name, ": '", word, "' is no number of elements"));
      }
      if (layer.shape.empty()) layer.shape.push_back(elements);  // of the weight, as one row
      layer.parameters += elements;
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

/// The coordinator's own plan for these layers and nodes: every process makes the same one.
absl::StatusOr<Plan> plan_for(const NodeOptions& options, std::vector<std::string> servers) {
  PlannerInput input;
  POSEIDON_ASSIGN_OR_RETURN(input.layers, read_sizes(options.sizes));
  input.batch_size = 1;
  input.epoch = kEpoch;
  input.worker_addresses.resize(options.workers);
  input.server_addresses = std::move(servers);
  return make_plan(input);
}

// ---- server ----

absl::Status serve(const NodeOptions& options) {
  RefusalCounts refusals;
  GrpcTransport grpc;
  PacedTransport transport(&grpc, tensor_arena(), server_window_bytes());
  ShardService service(
      &transport, &refusals, [](const std::string& peer, const Objection& objection) {
        std::cerr << "refused a message of " << peer << ": " << objection.message << std::endl;
      });
  POSEIDON_ASSIGN_OR_RETURN(const std::string address, transport.listen(options.listen, &service));
  grpc.start();
  say({{"listening", address}});
  double cpu_begin = 0.0;
  absl::Status status;
  for (std::string line; status.ok() && std::getline(std::cin, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    std::uint32_t index = 0;
    if (line == "mark") {
      cpu_begin = process_cpu_seconds();
      say({{"marked", true}});
    } else if (words.size() == 3 && words[0] == "assign" && absl::SimpleAtoi(words[1], &index)) {
      absl::StatusOr<Plan> plan = plan_for(options, absl::StrSplit(words[2], ','));
      if (!plan.ok()) {
        status = plan.status();
        break;
      }
      if (index >= plan->servers()) {
        status = absl::InvalidArgumentError(absl::StrCat("'", line, "': no such server"));
        break;
      }
      auto traffic = std::make_shared<TrafficProbe>(plan->layers.size());
      std::promise<void> assigned;
      service.assign(*std::move(plan), ServerIndex(index), {.learning_rate = kLearningRate},
                     std::move(traffic), [&assigned] { assigned.set_value(); });
      assigned.get_future().wait();  // bounded: the loop runs all posted tasks
      say({{"assigned", index}});
    } else {
      status = absl::InvalidArgumentError(absl::StrCat("'", line, "' is no command of a server"));
    }
  }
  if (status.ok()) say({{"cpu_seconds", process_cpu_seconds() - cpu_begin}});
  grpc.stop();
  return status;
}

// ---- worker ----

/// One layer's parameters and gradients, and which elements are checked.
struct LayerTensors {
  FloatBuffer parameters;
  FloatBuffer gradients;
  std::vector<std::size_t> checked;
};

/// The checked elements are every kCheckedStride-th of the whole model and its last.
std::vector<LayerTensors> make_tensors(const Plan& plan) {
  std::vector<LayerTensors> tensors;
  std::int64_t begin = 0;
  for (const PlanLayer& layer : plan.layers) {
    LayerTensors made{FloatBuffer(layer.parameters), FloatBuffer::sendable(layer.parameters), {}};
    for (std::int64_t at = 0; at < layer.parameters; ++at) {
      if ((begin + at) % kCheckedStride == 0) made.checked.push_back(static_cast<std::size_t>(at));
    }
    begin += layer.parameters;
    tensors.push_back(std::move(made));
  }
  if (!tensors.empty()) {
    tensors.back().checked.push_back(static_cast<std::size_t>(plan.layers.back().parameters) - 1);
  }
  return tensors;
}

/// After the steps of gradients (rank + 1) * 1, ..., (rank + 1) * steps, averaged over the ranks.
absl::Status check_values(const Plan& plan, const std::vector<LayerTensors>& tensors,
                          std::int64_t steps) {
  const double mean_rank_factor = (plan.workers() + 1) / 2.0;
  const double expected = -kLearningRate * mean_rank_factor * static_cast<double>(steps) *
                          static_cast<double>(steps + 1) / 2.0;
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    for (const std::size_t at : tensors[l].checked) {
      const double value = tensors[l].parameters.floats()[at];
      if (std::abs(value - expected) > 1e-5 * std::abs(expected)) {
        return absl::DataLossError(absl::StrCat("wrong sum: after ", steps, " steps element ", at,
                                                " of layer ", plan.layers[l].name, " is ", value,
                                                " and should be ", expected));
      }
    }
  }
  return absl::OkStatus();
}

/// One synchronisation as a training loop sees it; its seconds. Values are set before and checked
/// after, outside the time taken.
absl::StatusOr<double> synchronise(const Plan& plan, const NodeOptions& options,
                                   std::vector<LayerTensors>& tensors, SyncClient& client,
                                   Iteration iteration) {
  const auto begin = std::chrono::steady_clock::now();
  for (auto l = static_cast<std::uint32_t>(plan.layers.size()); l > 0; --l) {
    client.gradient_ready(LayerIndex(l - 1), iteration);
  }
  POSEIDON_RETURN_IF_ERROR(client.wait_all_parameters(iteration + 1));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  POSEIDON_RETURN_IF_ERROR(check_values(plan, tensors, iteration + 1));
  for (LayerTensors& layer : tensors) {
    for (const std::size_t at : layer.checked) {
      layer.gradients.floats()[at] =
          static_cast<float>((options.rank + 1) * static_cast<double>(iteration + 2));
    }
  }
  return seconds;
}

absl::Status work(const NodeOptions& options) {
  if (options.rank >= options.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank ", options.rank, " of --workers ", options.workers, ": too large"));
  }
  POSEIDON_ASSIGN_OR_RETURN(const Plan plan, plan_for(options, options.servers));
  std::vector<LayerTensors> tensors = make_tensors(plan);
  std::vector<LayerMemory> memory;
  for (LayerTensors& layer : tensors) {
    for (const std::size_t at : layer.checked) {
      layer.gradients.floats()[at] = static_cast<float>(options.rank + 1);
    }
    memory.push_back({.parameters = layer.parameters.floats(),
                      .gradients = std::as_const(layer.gradients).floats(),
                      .owner = std::make_shared<std::pair<FloatBuffer, FloatBuffer>>(
                          layer.parameters, layer.gradients)});
  }
  GrpcTransport grpc;
  PacedTransport transport(&grpc, tensor_arena());
  grpc.start();
  RefusalCounts refusals;
  TrafficProbe traffic(plan.layers.size());
  SyncClientOptions sync_options;
  sync_options.wait_timeout = Milliseconds(options.timeout_s * 1000);
  SyncClient client(&transport, plan, WorkerRank(options.rank), std::move(memory), sync_options,
                    &traffic, &refusals);
  client.start();
  POSEIDON_RETURN_IF_ERROR(client.wait_all_parameters(0));
  // Not measured: connections and buffers grow to their size.
  POSEIDON_RETURN_IF_ERROR(synchronise(plan, options, tensors, client, 0).status());
  say({{"warm", true}});
  const double cpu_begin = process_cpu_seconds();
  std::string line;
  for (Iteration i = 1; i <= options.iterations; ++i) {
    std::getline(std::cin, line);
    POSEIDON_ASSIGN_OR_RETURN(const double seconds, synchronise(plan, options, tensors, client, i));
    say({{"iteration", i}, {"seconds", seconds}});
  }
  say({{"cpu_seconds", process_cpu_seconds() - cpu_begin}, {"correct", true}});
  return absl::OkStatus();
}

absl::Status run(const NodeOptions& options) {
  tune_process();
  if (const absl::Status shared = share_tensor_memory(); !shared.ok()) return shared;
  return options.role == "server" ? serve(options) : work(options);
}

}  // namespace
}  // namespace poseidon

int main(int argc, char** argv) {
  poseidon::NodeOptions options;
  CLI::App app("One worker or server of a synchronisation benchmark; see bench/peers/README.md.",
               "poseidon-bench-node");
  app.add_option("--role", options.role)->required()->check(CLI::IsMember({"server", "worker"}));
  app.add_option("--listen", options.listen, "server: ADDR:PORT; port 0: any free");
  app.add_option("--rank", options.rank, "worker: which one, 0-based");
  app.add_option("--servers", options.servers, "worker: ADDR:PORT of all, in order")
      ->delimiter(',');
  app.add_option("--workers", options.workers, "how many")->required()->check(CLI::Range(1U, 64U));
  app.add_option("--sizes", options.sizes, "lines NAME ELEMENTS ...: the layers")->required();
  app.add_option("--iterations", options.iterations, "measured, after one that is not")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  app.add_option("--timeout-s", options.timeout_s, "longest wait for one layer")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = poseidon::run(options);
  if (!status.ok()) std::cerr << "poseidon-bench-node: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
