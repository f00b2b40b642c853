// Whole workers and servers in one process over real gRPC, real digits and LeNet: whatever the
// network does to the order of things, the model has the same bytes.

#include <atomic>
#include <cmath>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/grpc_transport.h"
#include "common/job.h"
#include "common/paced_transport.h"
#include "common/tensor_memory.h"
#include "gmock/gmock.h"
#include "server/shard_service.h"
#include "tests/support/delaying_transport.h"
#include "worker/data/batches.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/model_file.h"
#include "worker/trainer.h"

namespace poseidon {
namespace {

using testing_support::DelayingTransport;

constexpr std::uint32_t kWorkers = 4;
constexpr std::uint32_t kServers = 2;
constexpr Iteration kIterations = 12;

JobSpec digits_job() {
  const auto job = parse_job(R"({
    "name": "digits", "model": "lenet", "init": {"seed": 1},
    "data": {"train": {"format": "idx",
                       "images": "tests/data/digits/train-images-idx3-ubyte.gz",
                       "labels": "tests/data/digits/train-labels-idx1-ubyte.gz"},
             "shuffle": true, "seed": 1,
             "transform": {"resize": [28, 28], "scale": 0.00392156862745098}},
    "batch_size": 4, "iterations": 12,
    "optimizer": {"type": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.0005}})");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

/// A node's transport, delayed or not; through shared memory once the process has an arena.
struct Node {
  Node(Nanoseconds max_delay, std::uint64_t seed)
      : delaying(&grpc, max_delay, seed),
        shared(max_delay > Nanoseconds{0} ? static_cast<Transport*>(&delaying) : &grpc,
               tensor_arena()) {}
  GrpcTransport grpc;
  DelayingTransport delaying;
  PacedTransport shared;
  Transport* const transport = &shared;
};

struct Server {
  Server(Nanoseconds max_delay, std::uint64_t seed)
      : node(max_delay, seed), service(node.transport, &refusals, {}) {
    address = *node.transport->listen("127.0.0.1:0", &service);
    node.grpc.start();
  }
  ~Server() { node.grpc.stop(); }
  RefusalCounts refusals;
  Node node;
  ShardService service;
  std::string address;
};

Plan make_plan(const NetSpec& net, const std::vector<std::unique_ptr<Server>>& servers) {
  Plan plan;
  plan.epoch = Epoch(1);
  plan.batch_size = 4;
  plan.worker_addresses.assign(kWorkers, "");
  for (const auto& server : servers) plan.server_addresses.push_back(server->address);
  constexpr std::int64_t kChunkElements = 16384;  // many chunks: much to get out of order
  for (const std::size_t l : net.parameter_layers()) {
    const LayerIndex layer(static_cast<std::uint32_t>(plan.layers.size()));
    plan.layers.push_back(
        {.name = net.layers[l].name, .parameters = net.layers[l].parameter_count()});
    for (std::int64_t at = 0; at < plan.layers.back().parameters; at += kChunkElements) {
      plan.chunks.push_back(
          {.layer = layer,
           .offset = at,
           .elements = std::min(kChunkElements, plan.layers.back().parameters - at),
           .server = ServerIndex(static_cast<std::uint32_t>(plan.chunks.size()) % kServers)});
    }
  }
  return plan;
}

struct Silent final : TrainerEvents {
  void iteration_done(Iteration /*iteration*/, double loss) override { last_loss = loss; }
  void tested(Iteration /*steps*/, const ForwardResult& /*result*/) override {}
  double last_loss = NAN;
};

/// Trains as worker `rank`; the bytes of the model afterwards.
std::string train_as(std::uint32_t rank, const JobSpec& job, const NetSpec& net, const Plan& plan,
                     Nanoseconds max_delay) {
  Node node(max_delay, 1000 + rank);
  node.grpc.start();
  RefusalCounts refusals;
  TrafficProbe traffic(plan.layers.size());
  std::shared_ptr<Executor> executor =
      *make_cpu_executor(net, {.batch_size = job.batch_size, .seed = job.init.seed, .threads = 1});
  if (rank == 0) {
    initialise_parameters(net, job.init.seed,
                          [&](LayerIndex layer) { return executor->parameters(layer); });
  }
  std::vector<LayerMemory> layers;
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    layers.push_back(
        {executor->parameters(LayerIndex(l)), executor->gradients(LayerIndex(l)), executor});
  }
  auto batches = TrainBatches::open(
      job.data, net.input_shape, net.classes,
      {.workers = kWorkers, .rank = rank, .batch_size = job.batch_size, .first_iteration = 0});
  EXPECT_TRUE(batches.ok()) << batches.status();
  std::string model;
  {
    SyncClient sync(node.transport, plan, WorkerRank(rank), std::move(layers), SyncClientOptions{},
                    &traffic, &refusals);
    sync.start();
    const std::atomic<bool> cancelled{false};
    Silent events;
    const absl::Status status = train({.job = &job,
                                       .rank = WorkerRank(rank),
                                       .executor = executor.get(),
                                       .sync = &sync,
                                       .train = batches->get(),
                                       .cancelled = &cancelled,
                                       .events = &events});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(std::isfinite(events.last_loss));
    model = *encode_model(*executor);
  }
  if (max_delay > Nanoseconds{0}) {
    EXPECT_GT(node.delaying.delayed(), kIterations) << "nothing was delayed";
  }
  EXPECT_EQ(node.shared.traffic().shared_bytes > 0, tensor_arena() != nullptr);
  node.grpc.stop();
  return model;
}

/// The models of all workers.
std::vector<std::string> run_cluster(Nanoseconds max_delay) {
  const JobSpec job = digits_job();
  const auto net = resolve_network(job.model, ".");
  EXPECT_TRUE(net.ok()) << net.status();
  std::vector<std::unique_ptr<Server>> servers;
  for (std::uint32_t i = 0; i < kServers; ++i) {
    servers.push_back(std::make_unique<Server>(max_delay, i));
  }
  const Plan plan = make_plan(*net, servers);
  for (std::uint32_t i = 0; i < kServers; ++i) {
    auto assigned = std::make_shared<std::promise<void>>();
    servers[i]->service.assign(plan, ServerIndex(i), job.optimizer,
                               std::make_shared<TrafficProbe>(plan.layers.size()),
                               [assigned] { assigned->set_value(); });
    assigned->get_future().wait();
  }
  std::vector<std::future<std::string>> workers;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(std::async(std::launch::async,
                                 [&, rank] { return train_as(rank, job, *net, plan, max_delay); }));
  }
  std::vector<std::string> models;
  for (auto& worker : workers) models.push_back(worker.get());
  return models;
}

TEST(Delays, RandomDelaysInEveryTransportChangeNoByteOfTheModel) {
  const std::vector<std::string> undisturbed = run_cluster(Nanoseconds{0});
  ASSERT_GT(undisturbed[0].size(), 431080u * 4);
  for (std::uint32_t rank = 1; rank < kWorkers; ++rank) {
    EXPECT_TRUE(undisturbed[rank] == undisturbed[0]) << "worker " << rank << " has another model";
  }
  const auto expect_the_same = [&](const std::vector<std::string>& models, const char* how) {
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
      EXPECT_TRUE(models[rank] == undisturbed[0])
          << how << ", worker " << rank << ": another model";
    }
  };
  expect_the_same(run_cluster(Milliseconds(15)), "delayed");
  ASSERT_TRUE(share_tensor_memory().ok());
  expect_the_same(run_cluster(Nanoseconds{0}), "through shared memory");
  expect_the_same(run_cluster(Milliseconds(15)), "through shared memory, delayed");
}

}  // namespace
}  // namespace poseidon
