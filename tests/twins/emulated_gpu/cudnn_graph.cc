#include "tests/twins/emulated_gpu/cudnn_graph.h"

#include <array>

namespace poseidon::emulated {

const std::map<int, Rule>& rules() {
  static const auto* const all = new std::map<int, Rule>([] {
    std::map<int, Rule> made;
    const auto add = [&](cudnnBackendDescriptorType_t of, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, std::size_t bytes, bool is_needed) {
      made[name] = {of, type, bytes, is_needed};
    };
    const auto number = [&](cudnnBackendDescriptorType_t of, cudnnBackendAttributeName_t name) {
      add(of, name, CUDNN_TYPE_INT64, sizeof(std::int64_t), true);
    };
    const auto part = [&](cudnnBackendDescriptorType_t of, cudnnBackendAttributeName_t name,
                          bool is_needed = true) {
      add(of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, sizeof(void*), is_needed);
    };
    // The real one accepts doubles silently and then computes with 0 (seen with 9.19).
    const auto factor = [&](cudnnBackendDescriptorType_t of, cudnnBackendAttributeName_t name) {
      add(of, name, CUDNN_TYPE_FLOAT, sizeof(float), true);
    };
    const auto tensor = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
    number(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    number(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    number(tensor, CUDNN_ATTR_TENSOR_STRIDES);
    number(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    add(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, sizeof(cudnnDataType_t), true);
    add(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, sizeof(bool), false);
    const auto rule = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR;
    number(rule, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
    number(rule, CUDNN_ATTR_CONVOLUTION_DILATIONS);
    number(rule, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    number(rule, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    number(rule, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    add(rule, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, sizeof(cudnnDataType_t),
        true);
    add(rule, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
        sizeof(cudnnConvolutionMode_t), true);
    const auto forward = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
    part(forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
    part(forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
    part(forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
    part(forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
    factor(forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
    factor(forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
    const auto of_weight = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
    part(of_weight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
    part(of_weight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
    part(of_weight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
    part(of_weight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
    factor(of_weight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
    factor(of_weight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
    const auto of_input = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    part(of_input, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
    part(of_input, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
    part(of_input, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
    part(of_input, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
    factor(of_input, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
    factor(of_input, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
    const auto pointwise = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
    add(pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE,
        sizeof(cudnnPointwiseMode_t), true);
    add(pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, sizeof(cudnnDataType_t),
        true);
    add(pointwise, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION,
        sizeof(cudnnNanPropagation_t), false);
    const auto element = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
    part(element, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    part(element, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    part(element, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, /*is_needed=*/false);
    part(element, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const auto graph = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
    part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    add(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, sizeof(cudnnHandle_t), true);
    const auto heuristics = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
    part(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    add(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
        sizeof(cudnnBackendHeurMode_t), true);
    const auto plan = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    add(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, sizeof(cudnnHandle_t), true);
    const auto pack = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
    number(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    add(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, sizeof(void*), true);
    add(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, sizeof(void*), true);
    return made;
  }());
  return *all;
}

namespace {

struct Tensor {
  std::int64_t number;
  cudnnDataType_t type;
  std::array<int, 4> sizes;
  bool has_channels_last, has_channels_first, is_virtual;
};

std::optional<Tensor> tensor_of(const Descriptor* from) {
  if (from == nullptr || from->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) return std::nullopt;
  const auto sizes = from->all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = from->all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if (sizes.size() != 4 || strides.size() != 4) return std::nullopt;
  for (const std::int64_t size : sizes)
    if (size < 1) return std::nullopt;
  const std::int64_t c = sizes[1], h = sizes[2], w = sizes[3];
  Tensor tensor{};
  tensor.number = from->one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  tensor.type = from->one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  tensor.is_virtual = from->one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  tensor.has_channels_last = strides == std::vector<std::int64_t>{h * w * c, 1, w * c, c};
  tensor.has_channels_first = strides == std::vector<std::int64_t>{c * h * w, h * w, w, 1};
  for (std::size_t i = 0; i < 4; ++i) tensor.sizes[i] = static_cast<int>(sizes[i]);
  return tensor;
}

/// The convolution that an operation asks for; its output may be virtual.
std::optional<Problem> sums_of(const Descriptor& operation, Tensor* output) {
  Problem problem;
  cudnnBackendAttributeName_t x_name{}, w_name{}, y_name{}, rule_name{}, alpha_name{}, beta_name{};
  switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      x_name = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X;
      w_name = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W;
      y_name = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y;
      rule_name = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC;
      alpha_name = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA;
      beta_name = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA;
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      problem.pass = Pass::kOfWeight;
      x_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X;
      w_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW;
      y_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY;
      rule_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC;
      alpha_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA;
      beta_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA;
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      problem.pass = Pass::kOfInput;
      x_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX;
      w_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W;
      y_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY;
      rule_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC;
      alpha_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA;
      beta_name = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA;
      break;
    default:
      return std::nullopt;
  }
  const auto x = tensor_of(operation.part(x_name));
  const auto w = tensor_of(operation.part(w_name));
  const auto y = tensor_of(operation.part(y_name));
  const Descriptor* const rule = operation.part(rule_name);
  if (!x || !w || !y || x->is_virtual || w->is_virtual) return std::nullopt;
  if (operation.one<float>(alpha_name) != 1.0f || operation.one<float>(beta_name, 1.0f) != 0.0f) {
    return std::nullopt;
  }
  const auto numbers = [&](cudnnBackendAttributeName_t name) {
    return rule->all<std::int64_t>(name);
  };
  const std::vector<std::int64_t> pad = numbers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const std::vector<std::int64_t> stride = numbers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  const std::vector<std::int64_t> ones = {1, 1};
  if (rule->one<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2 ||
      rule->one<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_HALF) !=
          CUDNN_DATA_FLOAT ||
      rule->one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) !=
          CUDNN_CROSS_CORRELATION ||
      numbers(CUDNN_ATTR_CONVOLUTION_DILATIONS) != ones ||
      numbers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS) != pad || pad.size() != 2 ||
      stride.size() != 2) {
    return std::nullopt;
  }
  const bool has_channels_last =
      x->has_channels_last && w->has_channels_last && y->has_channels_last;
  // Of tensors of one pixel or channel both are true.
  const bool has_channels_first =
      x->has_channels_first && w->has_channels_first && y->has_channels_first;
  if ((!has_channels_last && !has_channels_first) || x->type != w->type ||
      x->sizes[0] != y->sizes[0] || y->type != (y->is_virtual ? CUDNN_DATA_FLOAT : x->type)) {
    return std::nullopt;
  }
  problem.sizes = {x->type,
                   has_channels_last && !(has_channels_first && x->type == CUDNN_DATA_FLOAT),
                   x->sizes[0],
                   {x->sizes[1], x->sizes[2], x->sizes[3]},
                   {y->sizes[1], y->sizes[2], y->sizes[3]},
                   {w->sizes[0], w->sizes[1], w->sizes[2], w->sizes[3]},
                   static_cast<int>(pad[0]),
                   static_cast<int>(pad[1]),
                   static_cast<int>(stride[0]),
                   static_cast<int>(stride[1])};
  if (!problem.sizes.fits()) return std::nullopt;
  problem.x = x->number;
  problem.w = w->number;
  problem.y = y->number;
  *output = *y;
  return problem;
}

/// Adds what a pointwise operation on `*output` asks for, which it moves to its own.
bool add_behind(const Descriptor& operation, Problem& problem, Tensor* output) {
  if (operation.type != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) return false;
  const Descriptor* const kind = operation.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  const auto in = tensor_of(operation.part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
  const auto out = tensor_of(operation.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  const auto other = tensor_of(operation.part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
  if (kind == nullptr || !in || !out || problem.pass != Pass::kForward || !output->is_virtual ||
      in->number != output->number || out->sizes != output->sizes ||
      out->has_channels_last != output->has_channels_last ||
      out->type != (out->is_virtual ? CUDNN_DATA_FLOAT : problem.sizes.type) ||
      kind->one<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_HALF) !=
          CUDNN_DATA_FLOAT) {
    return false;
  }
  const auto mode = kind->one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  const std::array<int, 4> of_bias = {1, problem.sizes.y.c, 1, 1};
  if (mode == CUDNN_POINTWISE_ADD && other && !problem.has_bias && !other->is_virtual &&
      other->sizes == of_bias && other->type == problem.sizes.type) {
    problem.has_bias = true;
    problem.bias = other->number;
  } else if (mode == CUDNN_POINTWISE_RELU_FWD && !other && problem.has_bias && !problem.has_relu) {
    problem.has_relu = true;
  } else {
    return false;
  }
  *output = *out;
  problem.y = out->number;
  return true;
}

}  // namespace

bool is_complete(const Descriptor& made) {
  for (const auto& [name, rule] : rules()) {
    if (rule.of != made.type) continue;
    const auto found = made.attributes.find(name);
    if (found == made.attributes.end()) {
      if (rule.is_needed) return false;
      continue;
    }
    if (rule.type != CUDNN_TYPE_BACKEND_DESCRIPTOR) continue;
    for (void* part : made.all<void*>(static_cast<cudnnBackendAttributeName_t>(name))) {
      if (part == nullptr || !descriptor(part)->is_final) return false;
    }
  }
  return true;
}

bool is_tensor(const Descriptor& made) { return tensor_of(&made).has_value(); }

std::optional<Problem> problem_of(const Descriptor& graph) {
  const auto operations = graph.all<void*>(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (operations.empty()) return std::nullopt;
  Tensor output{};
  std::optional<Problem> problem = sums_of(*descriptor(operations[0]), &output);
  for (std::size_t i = 1; problem && i < operations.size(); ++i) {
    if (!add_behind(*descriptor(operations[i]), *problem, &output)) return std::nullopt;
  }
  if (output.is_virtual) return std::nullopt;
  return problem;
}

}  // namespace poseidon::emulated
