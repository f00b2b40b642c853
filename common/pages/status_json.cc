#include "common/pages/status_json.h"
#include "nlohmann/json.hpp"

#include <cmath>
#include <string>

namespace poseidon {
namespace {

using Json = nlohmann::json;

/// JSON knows no NaN: not measured is null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json server_to_json(const v1::NodeStatus& node) {
  return {{"rank", node.rank()},      {"address", node.address()},
          {"device", node.device()},  {"state", node.state()},
          {"note", node.note()},      {"metrics_address", node.metrics_address()},
          {"node_id", node.node_id()}};
}

Json worker_to_json(const v1::NodeStatus& node) {
  Json json = server_to_json(node);
  json["images_per_s"] = number(node.images_per_s());
  json["compute_share"] = number(node.compute_share());
  json["stall_share"] = number(node.stall_share());
  json["data_stall_share"] = number(node.data_stall_share());
  json["corrupt_samples"] = node.corrupt_samples();
  return json;
}

/// null where there is none.
Json seconds_to_json(bool known, const v1::LayerSeconds& seconds) {
  if (!known) return nullptr;
  return {{"forward_seconds", number(seconds.forward())},
          {"backward_seconds", number(seconds.backward())},
          {"sync_seconds", number(seconds.sync())}};
}

/// {"0": 3}: server 0 owns three.
Json chunks_to_json(const v1::LayerStatus& layer) {
  Json json = Json::object();
  for (const auto& [server, chunks] : layer.chunks()) json[std::to_string(server)] = chunks;
  return json;
}

Json layer_to_json(const v1::LayerStatus& layer) {
  return {{"name", layer.name()},
          {"scheme", layer.scheme()},
          {"sent_bytes_per_s", number(layer.sent_bytes_per_s())},
          {"received_bytes_per_s", number(layer.received_bytes_per_s())},
          {"stall_share", number(layer.stall_share())},
          {"parameters", layer.parameters()},
          {"reason", layer.reason()},
          {"chunks", chunks_to_json(layer)},
          {"predicted", seconds_to_json(layer.has_predicted(), layer.predicted())},
          {"measured", seconds_to_json(layer.has_measured(), layer.measured())}};
}

}  // namespace

nlohmann::json status_to_json(const v1::GetStatusResponse& status) {
  Json json = {{"job", status.job()},
               {"job_id", status.job_id()},
               {"state", status.state()},
               {"message", status.message()},
               {"iteration", status.iteration()},
               {"iterations", status.iterations()},
               {"epoch", status.epoch()},
               {"loss", number(status.loss())},
               {"images_per_s", number(status.images_per_s())},
               {"test_accuracy", number(status.test_accuracy())},
               {"test_loss", number(status.test_loss())},
               {"tested_iteration", status.tested_iteration()},
               {"training_seconds", number(status.training_seconds())},
               {"training_from", status.training_from()},
               {"iterated_seconds", number(status.iterated_seconds())},
               {"run_directory", status.run_directory()},
               {"plan_basis", status.plan_basis()},
               {"predicted_iteration_seconds", number(status.predicted_iteration_seconds())},
               {"measured_iteration_seconds", number(status.measured_iteration_seconds())},
               {"recommendation", status.recommendation()},
               {"metrics_address", status.metrics_address()},
               {"workers", Json::array()},
               {"servers", Json::array()},
               {"layers", Json::array()},
               {"refused", Json::array()}};
  for (const auto& node : status.workers()) json["workers"].push_back(worker_to_json(node));
  for (const auto& node : status.servers()) json["servers"].push_back(server_to_json(node));
  for (const auto& layer : status.layers()) json["layers"].push_back(layer_to_json(layer));
  for (const auto& refused : status.refused()) {
    json["refused"].push_back({{"reason", refused.reason()}, {"count", refused.count()}});
  }
  return json;
}

}  // namespace poseidon
