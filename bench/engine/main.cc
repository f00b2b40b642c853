// poseidon-bench-engine: how fast one process trains a network, without optimizer and network
// traffic: forward and backward of the same batch again and again.

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/engine/timing_device.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/base/random.h"
#include "models/net/initialise.h"
#include "nlohmann/json.hpp"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/executor/network_executor.h"
#include "worker/engine/plugin/open_engine.h"
#include "worker/layer_clock.h"

namespace poseidon::bench {
namespace {

constexpr int kMaxIterations = 100000;

struct Options {
  std::string network;
  std::int64_t batch_size = 1;
  int threads = 1;
  std::string device = "cpu";
  std::string precision = "fp32";
  int iterations = 5;
  bool layers = false;
  bool turns = false;
  bool describe = false;
};

struct Clocks {
  double seconds = 0.0;      // by the wall
  double cpu_seconds = 0.0;  // user and system, of all threads
};

Clocks clocks() {
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {.seconds = std::chrono::duration<double>(wall).count(),
          .cpu_seconds = process_cpu_seconds()};
}

double peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;  // Linux counts KiB
}

/// The network with all shapes and options resolved, for torch_engine.py, which builds it
/// elsewhere.
nlohmann::json describe(const NetSpec& net) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerSpec& layer : net.layers) {
    nlohmann::json inputs = nlohmann::json::array();
    for (const std::size_t input : layer.inputs) {
      inputs.push_back(input == kNetworkInput ? "input" : net.layers[input].name);
    }
    layers.push_back({{"name", layer.name},
                      {"type", layer_type_name(layer.type)},
                      {"inputs", inputs},
                      {"input_shape", layer.input_shape},
                      {"output_shape", layer.output_shape},
                      {"kernel", {layer.kernel_h, layer.kernel_w}},
                      {"stride", {layer.stride_h, layer.stride_w}},
                      {"pad", {layer.pad_h, layer.pad_w}},
                      {"groups", layer.groups},
                      {"has_bias", layer.parameters.size() > 1},
                      {"pool", layer.pool == LayerSpec::Pool::kMax ? "max" : "average"},
                      {"ceil_mode", layer.ceil_mode},
                      {"local_size", layer.local_size},
                      {"alpha", layer.alpha},
                      {"beta", layer.beta},
                      {"k", layer.k},
                      {"ratio", layer.dropout_ratio},
                      {"count_padding", layer.count_padding},
                      {"epsilon", layer.epsilon},
                      {"momentum", layer.momentum},
                      {"loss_weight", layer.loss_weight},
                      {"label_smoothing", layer.label_smoothing}});
  }
  return {{"name", net.name},
          {"input_shape", net.input_shape},
          {"classes", net.classes},
          {"parameters", net.parameter_count()},
          {"layers", layers}};
}

Batch make_batch(const NetSpec& net, std::int64_t samples) {
  Batch batch;
  batch.samples = batch.valid_samples = samples;
  SplitMix64 random(1);
  batch.images.resize(static_cast<std::size_t>(samples * element_count(net.input_shape)));
  for (float& value : batch.images) value = 2.0f * static_cast<float>(random.uniform()) - 1.0f;
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto classes = static_cast<std::uint64_t>(net.classes);
    batch.labels.push_back(static_cast<std::int32_t>(random.below(classes)));
  }
  return batch;
}

class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> create(const NetSpec& net, const Options& options,
                                                        LayerTimes* times) {
    const ExecutorOptions executor_options{.batch_size = options.batch_size,
                                           .seed = 1,
                                           .threads = options.threads,
                                           .precision = options.precision};
    POSEIDON_ASSIGN_OR_RETURN(auto executor, make_executor(net, options, executor_options, times));
    initialise_parameters(net, 1, [&](LayerIndex layer) { return executor->parameters(layer); });
    return std::unique_ptr<Engine>(
        new Engine(std::move(executor), make_batch(net, options.batch_size)));
  }

  /// Some iterations, measured as one.
  absl::StatusOr<nlohmann::json> run(int iterations) {
    const Clocks begin = clocks();
    double loss = 0.0;
    for (int i = 0; i < iterations; ++i, ++iteration_) {
      executor_->time_passes(asks_the_device(iteration_) ? PassTiming::kLayers
                                                         : PassTiming::kNothing);
      POSEIDON_ASSIGN_OR_RETURN(
          const ForwardResult result,
          executor_->forward(batch_, Phase::kTrain, {.same_parameters = true}));
      loss = result.mean_loss();
      POSEIDON_RETURN_IF_ERROR(executor_->stage(batch_));  // as training does
      POSEIDON_RETURN_IF_ERROR(executor_->backward({}));
    }
    const Clocks end = clocks();
    const double images = static_cast<double>(iterations) * static_cast<double>(batch_.samples);
    return nlohmann::json{{"images_per_s", images / (end.seconds - begin.seconds)},
                          {"cpu_seconds_per_image", (end.cpu_seconds - begin.cpu_seconds) / images},
                          {"peak_mib", peak_mib()},
                          {"loss", loss}};
  }

 private:
  static absl::StatusOr<std::unique_ptr<Executor>> make_executor(
      const NetSpec& net, const Options& options, const ExecutorOptions& executor_options,
      LayerTimes* times) {
    if (!options.layers) {
      POSEIDON_ASSIGN_OR_RETURN(const poseidon::Engine engine, open_engine(options.device));
      return engine.make_executor(net, executor_options);
    }
    if (options.device != "cpu") {
      return absl::InvalidArgumentError(
          absl::StrCat("--layers with --device ", options.device,
                       ": a device that computes beside us has no time per call; use a profiler"));
    }
    auto device = make_timing_device(make_cpu_device(options.threads), times);
    return NetworkExecutor::create(net, executor_options, std::move(device));
  }

  Engine(std::unique_ptr<Executor> executor, Batch batch)
      : executor_(std::move(executor)), batch_(std::move(batch)) {}

  const std::unique_ptr<Executor> executor_;
  int iteration_ = 0;
  const Batch batch_;
};

void print_layers(const LayerTimes& times, int iterations) {
  std::printf("%-32s %-22s %10s %10s   ms per iteration\n", "layer", "type", "forward", "backward");
  LayerTimes types;
  LayerTime sum{.layer = "all", .type = ""};
  const auto print = [&](const LayerTime& time) {
    const double scale = 1000.0 / iterations;
    std::printf("%-32s %-22s %10.2f %10.2f\n", time.layer.c_str(), time.type.c_str(),
                time.forward_seconds * scale, time.backward_seconds * scale);
  };
  const auto add = [](LayerTime& to, const LayerTime& time) {
    to.forward_seconds += time.forward_seconds;
    to.backward_seconds += time.backward_seconds;
  };
  for (const LayerTime& time : times) {
    print(time);
    add(sum, time);
    bool found = false;
    for (LayerTime& type : types) {
      if (type.type != time.type) continue;
      add(type, time);
      found = true;
    }
    if (!found) types.push_back({"", time.type, time.forward_seconds, time.backward_seconds});
  }
  for (const LayerTime& type : types) print(type);
  print(sum);
}

/// One JSON line per line of standard input, which says how many iterations to run; so a script can
/// let several processes take turns (compare.py).
absl::Status take_turns(Engine& engine) {
  std::puts(R"({"ready": true})");
  std::fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) {
    int iterations = 0;
    if (!absl::SimpleAtoi(line, &iterations) || iterations < 1 || iterations > kMaxIterations) {
      return absl::InvalidArgumentError("a turn is a number of iterations, got '" + line + "'");
    }
    POSEIDON_ASSIGN_OR_RETURN(const nlohmann::json result, engine.run(iterations));
    std::puts(result.dump().c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::Status run(const Options& options) {
  POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, resolve_network(options.network, "."));
  if (options.describe) {
    std::puts(describe(net).dump().c_str());
    return absl::OkStatus();
  }
  LayerTimes times;
  POSEIDON_ASSIGN_OR_RETURN(const auto engine, Engine::create(net, options, &times));
  if (options.turns) return take_turns(*engine);
  POSEIDON_RETURN_IF_ERROR(engine->run(1).status());  // page faults, code generation
  for (LayerTime& time : times) time.forward_seconds = time.backward_seconds = 0.0;
  POSEIDON_ASSIGN_OR_RETURN(const nlohmann::json result, engine->run(options.iterations));
  if (options.layers) print_layers(times, options.iterations);
  std::puts(result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace poseidon::bench

int main(int argc, char** argv) {
  poseidon::bench::Options options;
  CLI::App app{"How fast one process trains a network: forward and backward alone."};
  app.add_option("--network", options.network, "shipped name, or path of a network file")
      ->required();
  app.add_option("--batch", options.batch_size, "samples per iteration")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "threads to compute with")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--device", options.device, "auto, cpu or cuda:N")->capture_default_str();
  app.add_option("--precision", options.precision, "fp32, tf32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "tf32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--iterations", options.iterations, "iterations to measure, after one to warm up")
      ->check(CLI::Range(1, poseidon::bench::kMaxIterations))
      ->capture_default_str();
  app.add_flag("--layers", options.layers, "also print forward and backward time of each layer");
  app.add_flag("--turns", options.turns,
               "read numbers of iterations from standard input and answer each with its figures");
  app.add_flag("--describe", options.describe,
               "print the network as one line of JSON and do nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  // What the device warns of goes to standard error: standard output has figures alone.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("poseidon-bench-engine"));
  const absl::Status status = poseidon::bench::run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "poseidon-bench-engine: %s\n", std::string(status.message()).c_str());
  return 1;
}
