#include "coordinator/calibrate.h"

namespace poseidon {

Calibration assume_calibration(const std::vector<PlannerLayer>& layers, std::int64_t batch_size,
                               std::size_t workers, std::size_t servers,
                               const AssumedMachines& machines) {
  Calibration calibration{.measured = false,
                          .layers = {},
                          .device_ops_per_s = machines.device_ops_per_s,
                          .server_sum_bytes_per_s = machines.server_sum_bytes_per_s,
                          .latency_s = machines.latency_s,
                          .workers = {},
                          .servers = {}};
  const NicSpeed nic{.send_bytes_per_s = machines.bandwidth_bytes_per_s,
                     .receive_bytes_per_s = machines.bandwidth_bytes_per_s};
  calibration.workers.assign(workers, nic);
  calibration.servers.assign(servers, nic);

  double multiply_adds = 0.0, parameters = 0.0;
  for (const PlannerLayer& layer : layers) {
    multiply_adds += static_cast<double>(layer.multiply_adds);
    parameters += static_cast<double>(layer.parameters);
  }
  const auto weight = [&](const PlannerLayer& layer) {
    return static_cast<double>(multiply_adds > 0.0 ? layer.multiply_adds : layer.parameters);
  };
  const double total = multiply_adds > 0.0 ? multiply_adds : parameters;
  const auto batch = static_cast<double>(batch_size);
  const double compute_s = machines.images_per_s
                               ? batch / *machines.images_per_s
                               : 3.0 * 2.0 * total * batch / machines.device_ops_per_s;
  for (const PlannerLayer& layer : layers) {
    const double forward_s = compute_s * weight(layer) / total / 3.0;
    calibration.layers.push_back(
        {.name = layer.name, .forward_s = forward_s, .backward_s = 2.0 * forward_s});
  }
  return calibration;
}

}  // namespace poseidon
