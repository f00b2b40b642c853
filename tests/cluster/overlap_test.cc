// Wait-free backpropagation (Zhang et al.: "Poseidon", USENIX ATC 2017, section 3.1): a layer's
// gradient is sent while the layers below still compute, and the forward pass waits for each layer
// separately. A worker that synchronised between its passes would train to the same bytes, so this
// test checks the times. One worker and a server for each layer, over real gRPC.

#include <array>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/grpc/grpc_transport.h"
#include "common/job/job.h"
#include "common/threads/mutex.h"
#include "gtest/gtest.h"
#include "models/net/initialise.h"
#include "server/shard/shard_service.h"
#include "tests/support/eventually.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/data/feed/batches.h"
#include "worker/engine/executor/forwarding_device.h"
#include "worker/engine/executor/network_executor.h"
#include "worker/trainer.h"

namespace poseidon::overlap_test {
namespace {

using testing_support::eventually;

constexpr std::uint32_t kLayers = 3;
/// For what comes at once, or never.
constexpr Nanoseconds kPatience = std::chrono::seconds(20);

JobSpec three_layers_job() {
  const auto job = parse_job(R"({
    "name": "three", "init": {"seed": 1},
    "model": {"name": "three", "input": [1, 28, 28], "layers": [
      {"name": "fc0", "type": "fully_connected", "outputs": 8},
      {"name": "fc1", "type": "fully_connected", "outputs": 8},
      {"name": "fc2", "type": "fully_connected", "outputs": 10},
      {"name": "loss", "type": "softmax_cross_entropy"}]},
    "data": {"train": {"format": "idx",
                       "images": "tests/data/digits/train-images-idx3-ubyte.gz",
                       "labels": "tests/data/digits/train-labels-idx1-ubyte.gz"},
             "transform": {"resize": [28, 28], "scale": 0.00392156862745098}},
    "batch_size": 4, "iterations": 2,
    "optimizer": {"type": "sgd", "learning_rate": 0.001}})");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

/// Of each layer's passes: counts them, and runs what the test hangs before one.
class Watch {
 public:
  enum Pass { kForward, kBackward };

  /// Before the next passes of this kind; on the trainer's thread.
  void before(const std::string& layer, Pass pass, std::function<void()> function) {
    before_[{layer, pass}] = std::move(function);
  }
  int count(const std::string& layer, Pass pass) {
    const MutexLock lock(mutex_);
    return counts_[{layer, pass}];
  }
  void begin(const std::string& layer, Pass pass) {
    if (const auto found = before_.find({layer, pass}); found != before_.end()) found->second();
    const MutexLock lock(mutex_);
    ++counts_[{layer, pass}];
  }

 private:
  std::map<std::pair<std::string, Pass>, std::function<void()>> before_;  ///< before training
  Mutex mutex_;
  std::map<std::pair<std::string, Pass>, int> counts_ ABSL_GUARDED_BY(mutex_);
};

class WatchedDevice final : public ForwardingDevice {
 public:
  explicit WatchedDevice(Watch* watch) : ForwardingDevice(make_reference_device()), watch_(watch) {}
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    absl::StatusOr<std::unique_ptr<LayerOperator>> made = inner().make_operator(layer, options);
    if (!made.ok()) return made.status();
    return std::make_unique<Operator>(watch_, layer.name, *std::move(made));
  }

 private:
  class Operator final : public LayerOperator {
   public:
    Operator(Watch* watch, std::string layer, std::unique_ptr<LayerOperator> inner)
        : watch_(watch), layer_(std::move(layer)), inner_(std::move(inner)) {}
    absl::Status forward(const ForwardArgs& args) override {
      watch_->begin(layer_, Watch::kForward);
      return inner_->forward(args);
    }
    absl::Status backward(const BackwardArgs& args) override {
      watch_->begin(layer_, Watch::kBackward);
      return inner_->backward(args);
    }

   private:
    Watch* const watch_;
    const std::string layer_;
    const std::unique_ptr<LayerOperator> inner_;
  };

  Watch* const watch_;
};

struct Server {
  Server() : service(&grpc, &refusals, {}) {
    address = *grpc.listen("127.0.0.1:0", &service);
    grpc.start();
  }
  ~Server() { grpc.stop(); }
  RefusalCounts refusals;
  GrpcTransport grpc;
  ShardService service;
  std::string address;
  std::shared_ptr<TrafficProbe> traffic = std::make_shared<TrafficProbe>(kLayers);
};

struct Silent final : TrainerEvents {
  void iteration_done(Iteration /*iteration*/, double /*loss*/) override {}
  void tested(Iteration /*steps*/, const TestTotals& /*totals*/) override {}
};

class Overlap : public ::testing::Test {
 protected:
  Overlap() {
    const auto net = resolve_network(job_.model, ".");
    EXPECT_TRUE(net.ok()) << net.status();
    net_ = *net;
    plan_.epoch = Epoch(1);
    plan_.batch_size = static_cast<std::uint32_t>(job_.batch_size);
    plan_.worker_addresses = {""};
    for (const Server& server : servers_) plan_.server_addresses.push_back(server.address);
    for (const std::size_t l : net_.parameter_layers()) {
      const auto index = static_cast<std::uint32_t>(plan_.layers.size());
      plan_.layers.push_back({.name = net_.layers[l].name,
                              .type = "fully_connected",
                              .shape = net_.layers[l].parameters[0].shape,
                              .parameters = net_.layers[l].parameter_count(),
                              .scheme = Scheme::kPs});
      plan_.chunks.push_back({.layer = LayerIndex(index),
                              .offset = 0,
                              .elements = plan_.layers.back().parameters,
                              .server = ServerIndex(index)});
    }
    EXPECT_TRUE(validate(plan_).ok()) << validate(plan_);
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      std::promise<void> assigned;
      servers_[i].service.assign(plan_, ServerIndex(i), job_.optimizer, servers_[i].traffic,
                                 [&assigned] { assigned.set_value(); });
      assigned.get_future().wait();
    }
    worker_.start();
  }
  ~Overlap() override { worker_.stop(); }

  absl::Status train() {
    TrafficProbe traffic(kLayers);
    auto created = NetworkExecutor::create(
        net_, {.batch_size = job_.batch_size, .seed = job_.init.seed, .threads = 1},
        std::make_unique<WatchedDevice>(&watch_));
    EXPECT_TRUE(created.ok()) << created.status();
    const std::shared_ptr<Executor> executor = *std::move(created);
    initialise_parameters(net_, job_.init.seed,
                          [&](LayerIndex layer) { return executor->parameters(layer); });
    std::vector<LayerMemory> layers;
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      layers.push_back(
          {executor->parameters(LayerIndex(l)), executor->gradients(LayerIndex(l)), executor});
    }
    auto batches = TrainBatches::open(job_.data, net_.input_shape, net_.classes,
                                      {.workers = 1, .rank = 0, .batch_size = job_.batch_size});
    EXPECT_TRUE(batches.ok()) << batches.status();
    SyncClient sync(&worker_, plan_, WorkerRank(0), std::move(layers), {}, &traffic, &refusals_);
    sync.start();
    const std::atomic<bool> cancelled{false};
    Silent events;
    return poseidon::train({.job = &job_,
                            .rank = WorkerRank(0),
                            .executor = executor.get(),
                            .sync = &sync,
                            .train = batches->get(),
                            .traffic = &traffic,
                            .cancelled = &cancelled,
                            .events = &events});
  }
  std::uint64_t received(std::uint32_t layer) const {
    return servers_[layer].traffic->received_bytes(LayerIndex(layer));
  }

  const JobSpec job_ = three_layers_job();
  NetSpec net_;
  std::array<Server, kLayers> servers_;
  Plan plan_;
  Watch watch_;
  RefusalCounts refusals_;
  GrpcTransport worker_;
};

TEST_F(Overlap, AGradientLeavesWhileTheLayersBelowCompute) {
  std::uint64_t before = 0;
  bool last_left = false, middle_left = false;
  watch_.before("fc2", Watch::kBackward, [&] { before = received(2); });
  watch_.before("fc1", Watch::kBackward, [&] {
    last_left = eventually([&] { return received(2) > before; }, kPatience);
    before = received(1);
  });
  watch_.before("fc0", Watch::kBackward,
                [&] { middle_left = eventually([&] { return received(1) > before; }, kPatience); });
  EXPECT_TRUE(train().ok());
  EXPECT_TRUE(last_left);
  EXPECT_TRUE(middle_left);
  EXPECT_EQ(watch_.count("fc0", Watch::kBackward), 2);
}

TEST_F(Overlap, ForwardWaitsForEachLayerAlone) {
  auto released = std::make_shared<std::promise<void>>();
  const auto gate = std::make_shared<std::future<void>>(released->get_future());
  bool is_held = false;
  watch_.before("fc2", Watch::kBackward, [&] {
    // The last layer's server stands still before it can have the gradient.
    if (std::exchange(is_held, true)) return;
    std::promise<void> still;
    servers_[2].grpc.post([&still, gate] {
      still.set_value();
      gate->wait_for(2 * kPatience);
    });
    still.get_future().wait();
  });
  auto trained = std::async(std::launch::async, [this] { return train(); });
  EXPECT_TRUE(eventually([&] { return watch_.count("fc1", Watch::kForward) == 2; }, kPatience))
      << "the layers below have their parameters";
  EXPECT_EQ(watch_.count("fc0", Watch::kForward), 2);
  EXPECT_EQ(watch_.count("fc2", Watch::kForward), 1) << "and this one has not";
  released->set_value();
  EXPECT_TRUE(trained.get().ok());
  EXPECT_EQ(watch_.count("fc2", Watch::kForward), 2);
}

}  // namespace
}  // namespace poseidon::overlap_test
