#pragma once

// Layer tables of published networks, for tests of the planner.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/calibrate.h"
#include "coordinator/planning/planner.h"

namespace poseidon {

inline PlannerLayer convolution(std::string name, std::int64_t out, std::int64_t in,
                                std::int64_t kernel, std::int64_t pixels) {
  const std::int64_t weight = out * in * kernel * kernel;
  return {.name = std::move(name),
          .type = "convolution",
          .shape = {out, in, kernel, kernel},
          .parameters = weight + out,
          .is_fully_connected = false,
          .multiply_adds = weight * pixels};
}

inline PlannerLayer fully_connected(std::string name, std::int64_t m, std::int64_t n) {
  return {.name = std::move(name),
          .type = "fully_connected",
          .shape = {m, n},
          .parameters = m * n + m,
          .is_fully_connected = true,
          .multiply_adds = m * n};
}

/// Simonyan and Zisserman, "Very Deep Convolutional Networks", configuration E, with `classes`
/// outputs: 1000, or 21841 for ImageNet-22K.
inline std::vector<PlannerLayer> vgg19(std::int64_t classes) {
  std::vector<PlannerLayer> layers;
  std::int64_t in = 3, size = 224;
  const struct {
    std::int64_t out;
    int count;
  } blocks[] = {{64, 2}, {128, 2}, {256, 4}, {512, 4}, {512, 4}};
  int block_number = 1;
  for (const auto& block : blocks) {
    for (int i = 1; i <= block.count; ++i) {
      layers.push_back(
          convolution(absl::StrCat("conv", block_number, "_", i), block.out, in, 3, size * size));
      in = block.out;
    }
    size /= 2;
    ++block_number;
  }
  layers.push_back(fully_connected("fc6", 4096, 512 * 7 * 7));
  layers.push_back(fully_connected("fc7", 4096, 4096));
  layers.push_back(fully_connected("fc8", classes, 4096));
  return layers;
}

inline std::vector<std::string> hosts(const char* prefix, std::size_t count) {
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < count; ++i) {
    addresses.push_back(absl::StrCat(prefix, i, ":", 4000 + i % 1000));
  }
  return addresses;
}

/// `nodes` machines with a worker and a server each, or as many more for the servers; 10 GbE.
inline PlannerInput cluster_input(std::vector<PlannerLayer> layers, std::int64_t batch_size,
                                  std::size_t nodes, const AssumedMachines& machines,
                                  bool separate_servers = false) {
  PlannerInput input{.layers = std::move(layers),
                     .batch_size = batch_size,
                     .epoch = Epoch(1),
                     .worker_addresses = hosts("node", nodes),
                     .server_addresses = hosts(separate_servers ? "server" : "node", nodes),
                     .sync = {},
                     .calibration = std::nullopt};
  for (std::string& address : input.server_addresses) address += "0";
  input.calibration = assume_calibration(input.layers, batch_size, nodes, nodes, machines);
  return input;
}

inline double speedup(const Plan& plan) {
  return static_cast<double>(plan.workers()) * plan.prediction->compute_s /
         plan.prediction->iteration_s;
}

}  // namespace poseidon
