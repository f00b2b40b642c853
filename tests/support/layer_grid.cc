#include "tests/support/layer_grid.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace poseidon::testing {
namespace {

using nlohmann::json;

std::vector<LayerCase> convolution_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const std::int64_t batch : {1, 3}) {
    for (const Shape& shape : {Shape{1, 9, 7}, Shape{4, 8, 8}, Shape{18, 7, 5}}) {
      for (const int kernel : {1, 3, 5}) {
        for (const int stride : {1, 2}) {
          const json layer = {{"type", "convolution"},
                              {"outputs", 6},
                              {"kernel", kernel},
                              {"stride", stride},
                              {"pad", kernel / 2}};
          add(layer, shape, batch);
        }
      }
    }
  }
  add({{"type", "convolution"}, {"outputs", 20}, {"kernel", 5}}, {1, 28, 28}, 2);
  add({{"type", "convolution"}, {"outputs", 66}, {"kernel", 3}}, {4, 6, 5}, 2);
  add({{"type", "convolution"}, {"outputs", 66}, {"kernel", 1}}, {4, 91, 91}, 1);
  add({{"type", "convolution"}, {"outputs", 17}, {"kernel", {1, 7}}}, {3, 7, 9}, 2);
  add({{"type", "convolution"}, {"outputs", 3}, {"kernel", 3}, {"stride", 4}, {"bias", false}},
      {5, 11, 10}, 1);
  return cases;
}

// Outputs at the border are of padding alone: the bias.
std::vector<LayerCase> convolution_of_padding_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const Shape& shape : {Shape{1, 4, 5}, Shape{16, 7, 7}, Shape{18, 5, 6}}) {
    for (const int outputs : {3, 16, 32}) {
      for (const int stride : {1, 2}) {
        for (const auto& [kernel, pad] : {std::pair(1, 1), {1, 3}, {2, 2}, {3, 3}, {3, 5}}) {
          add({{"type", "convolution"},
               {"outputs", outputs},
               {"kernel", kernel},
               {"stride", stride},
               {"pad", pad}},
              shape, 2);
        }
      }
    }
  }
  add({{"type", "convolution"}, {"outputs", 10}, {"kernel", {1, 3}}, {"pad", {1, 0}}}, {5, 6, 7},
      3);
  add({{"type", "convolution"}, {"outputs", 32}, {"kernel", 1}, {"pad", 1}, {"groups", 2}},
      {32, 5, 5}, 1);
  add({{"type", "convolution"}, {"outputs", 8}, {"kernel", 1}, {"pad", 2}, {"bias", false}},
      {8, 3, 3}, 2);
  return cases;
}

std::vector<LayerCase> convolution_in_groups_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const int groups : {2, 3, 6}) {
    add({{"type", "convolution"}, {"outputs", 12}, {"kernel", 3}, {"pad", 1}, {"groups", groups}},
        {6, 7, 6}, 2);
  }
  add({{"type", "convolution"}, {"outputs", 32}, {"kernel", 3}, {"groups", 2}}, {32, 5, 5}, 1);
  return cases;
}

std::vector<LayerCase> pooling_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const char* pool : {"max", "average"}) {
    for (const std::int64_t batch : {1, 2}) {
      for (const Shape& shape : {Shape{1, 7, 6}, Shape{5, 8, 9}, Shape{16, 5, 5}}) {
        for (const int kernel : {1, 2, 3}) {
          for (const int stride : {1, 2, 3}) {
            for (const bool ceil_mode : {false, true}) {
              add({{"type", "pooling"},
                   {"pool", pool},
                   {"kernel", kernel},
                   {"stride", stride},
                   {"pad", kernel / 2},
                   {"ceil_mode", ceil_mode}},
                  shape, batch);
            }
          }
        }
      }
    }
  }
  return cases;
}

// ceil_mode alone lets a window be larger than the padded image.
std::vector<LayerCase> pooling_that_hangs_over_cases() {
  std::vector<LayerCase> cases;
  for (const char* pool : {"max", "average"}) {
    for (const Shape& shape : {Shape{1, 2, 2}, Shape{5, 3, 2}, Shape{16, 2, 7}, Shape{17, 2, 3}}) {
      for (const auto& [kernel, stride, pad] : {std::tuple(3, 2, 0), {3, 3, 0}, {5, 4, 1}}) {
        json layer = {{"type", "pooling"}, {"pool", pool}, {"kernel", kernel},
                      {"stride", stride},  {"pad", pad},   {"ceil_mode", true}};
        cases.push_back({layer, shape, 2});
        if (layer["pool"] == "max") continue;
        layer["count_padding"] = true;
        cases.push_back({layer, shape, 2});
      }
    }
  }
  return cases;
}

std::vector<LayerCase> pooling_of_the_whole_plane_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const char* pool : {"max", "average"}) {
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 7, 5}, Shape{17, 8, 8}}) {
      add({{"type", "pooling"}, {"pool", pool}, {"global", true}}, shape, 2);
    }
  }
  return cases;
}

std::vector<LayerCase> average_pooling_that_counts_padding_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const Shape& shape : {Shape{1, 7, 6}, Shape{5, 8, 9}, Shape{16, 5, 5}}) {
    for (const int kernel : {2, 3, 5}) {
      for (const int stride : {1, 2, 3}) {
        for (const bool ceil_mode : {false, true}) {
          add({{"type", "pooling"},
               {"pool", "average"},
               {"kernel", kernel},
               {"stride", stride},
               {"pad", kernel / 2},
               {"ceil_mode", ceil_mode},
               {"count_padding", true}},
              shape, 2);
        }
      }
    }
  }
  return cases;
}

std::vector<LayerCase> batch_norm_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const std::int64_t batch : {2, 5}) {
    for (const Shape& shape : {Shape{1, 3, 2}, Shape{3, 5, 7}, Shape{17, 8, 8}, Shape{2, 70, 41}}) {
      add({{"type", "batch_norm"}}, shape, batch);
      add({{"type", "batch_norm"}, {"epsilon", 0.001}, {"momentum", 0.9}}, shape, batch);
    }
  }
  // Channels last go two or four to a thread, in parts and in rounds.
  add({{"type", "batch_norm"}}, {66, 3, 5}, 3);
  add({{"type", "batch_norm"}}, {67, 3, 5}, 2);
  add({{"type", "batch_norm"}}, {66, 16, 17}, 2);
  add({{"type", "batch_norm"}}, {132, 16, 17}, 2);
  add({{"type", "batch_norm"}}, {66, 91, 91}, 1);
  add({{"type", "batch_norm"}}, {5, 4, 4}, 1);
  add({{"type", "batch_norm"}}, {1}, 7);
  add({{"type", "batch_norm"}}, {33}, 9);
  return cases;
}

std::vector<LayerCase> concat_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const std::int64_t batch : {1, 5}) {
    for (const Shape& shape : {Shape{1}, Shape{31}, Shape{3, 5, 7}, Shape{8, 40, 41}}) {
      add({{"type", "concat"}}, shape, batch);
    }
  }
  return cases;
}

std::vector<LayerCase> fully_connected_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const std::int64_t batch : {1, 2, 33}) {
    for (const std::int64_t inputs : {1, 7, 64}) {
      for (const int outputs : {1, 10, 65}) {
        add({{"type", "fully_connected"}, {"outputs", outputs}}, {inputs}, batch);
      }
    }
    add({{"type", "fully_connected"}, {"outputs", 9}, {"bias", false}}, {3, 5, 4}, batch);
  }
  return cases;
}

std::vector<LayerCase> element_by_element_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const std::int64_t batch : {1, 5}) {
    for (const Shape& shape : {Shape{1}, Shape{31}, Shape{3, 5, 7}, Shape{8, 40, 41}}) {
      add({{"type", "relu"}}, shape, batch);
      add({{"type", "add"}}, shape, batch);
      add({{"type", "dropout"}, {"ratio", 0.3}}, shape, batch);
    }
  }
  return cases;
}

std::vector<LayerCase> lrn_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const std::int64_t channels : {1, 3, 6, 16, 19, 24}) {
    for (const int local_size : {1, 3, 5, 7}) {
      add({{"type", "lrn"}, {"local_size", local_size}, {"alpha", 0.4}, {"k", 2}}, {channels, 3, 5},
          2);
    }
  }
  return cases;
}

std::vector<LayerCase> scores_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](const json& layer, const Shape& shape, std::int64_t batch) {
    cases.push_back({layer, shape, batch});
  };
  for (const std::int64_t batch : {1, 4, 7}) {
    for (const std::int64_t classes : {2, 10, 1001}) {
      add({{"type", "softmax_cross_entropy"}}, {classes}, batch);
      add({{"type", "softmax_cross_entropy"}, {"label_smoothing", 0.1}, {"loss_weight", 0.3}},
          {classes}, batch);
      add({{"type", "accuracy"}}, {classes}, batch);
    }
  }
  return cases;
}

}  // namespace

const std::vector<LayerCases>& layer_grid() {
  static const std::vector<LayerCases> grid = {
      {"Convolution", convolution_cases()},
      {"ConvolutionInGroups", convolution_in_groups_cases()},
      {"ConvolutionOfPadding", convolution_of_padding_cases()},
      {"Pooling", pooling_cases()},
      {"PoolingThatHangsOver", pooling_that_hangs_over_cases()},
      {"PoolingOfTheWholePlane", pooling_of_the_whole_plane_cases()},
      {"AveragePoolingThatCountsPadding", average_pooling_that_counts_padding_cases()},
      {"BatchNorm", batch_norm_cases()},
      {"Concat", concat_cases()},
      {"FullyConnected", fully_connected_cases()},
      {"ElementByElement", element_by_element_cases()},
      {"Lrn", lrn_cases()},
      {"Scores", scores_cases()}};
  return grid;
}

}  // namespace poseidon::testing
