#pragma once

// Maps names to layer types.
//
// Called by: net_parse.cc, which reads network files; messages and status, which print types.
// Calls: nothing.

#include <array>
#include <string_view>
#include <utility>

#include "models/net/net.h"

namespace poseidon {

/// The one table of layer types and their names in network files.
inline constexpr std::array<std::pair<std::string_view, LayerType>, 11> kLayerTypeNames{{
    {"convolution", LayerType::kConvolution},
    {"pooling", LayerType::kPooling},
    {"fully_connected", LayerType::kFullyConnected},
    {"relu", LayerType::kRelu},
    {"lrn", LayerType::kLrn},
    {"dropout", LayerType::kDropout},
    {"softmax_cross_entropy", LayerType::kSoftmaxCrossEntropy},
    {"accuracy", LayerType::kAccuracy},
    {"add", LayerType::kAdd},
    {"batch_norm", LayerType::kBatchNorm},
    {"concat", LayerType::kConcat},
}};

}  // namespace poseidon
