// Whole workers and servers in one process over real gRPC, real digits and LeNet: the model has the
// same bytes, however the network delays and reorders.

#include <atomic>
#include <barrier>
#include <cmath>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/grpc/grpc_transport.h"
#include "common/job/job.h"
#include "common/memory/tensor_memory.h"
#include "common/transport/paced_transport.h"
#include "common/wire/factor_wire.h"
#include "gmock/gmock.h"
#include "models/net/initialise.h"
#include "server/shard/shard_service.h"
#include "sync/links/peer_stream.h"
#include "tests/support/delaying_transport.h"
#include "worker/data/feed/batches.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/model_file.h"
#include "worker/executor_factors.h"
#include "worker/trainer.h"

namespace poseidon::delays_test {
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

/// One method's transport of a node, delayed or not; through shared memory once the process has an
/// arena.
struct Method {
  Method(Transport* below, Nanoseconds max_delay, std::uint64_t seed)
      : delaying(below, max_delay, seed),
        shared(max_delay > Nanoseconds{0} ? static_cast<Transport*>(&delaying) : below,
               tensor_arena()) {}
  DelayingTransport delaying;
  PacedTransport shared;
};

/// A node's transports, to servers and to workers, on one loop.
struct Node {
  Node(Nanoseconds max_delay, std::uint64_t seed)
      : chunks(&grpc, max_delay, seed),
        factors(&grpc.add_method(kFactorMethod), max_delay, seed + 500) {}
  GrpcTransport grpc;
  Method chunks, factors;
  Transport* const transport = &chunks.shared;
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

/// A worker's node, listening for the others.
struct WorkerEnd {
  WorkerEnd(Nanoseconds max_delay, std::uint64_t seed)
      : node(max_delay, seed), door(&node.factors.shared, &refusals) {
    address = *node.factors.shared.listen("127.0.0.1:0", &door);
    node.grpc.start();
  }
  ~WorkerEnd() { node.grpc.stop(); }
  RefusalCounts refusals;
  Node node;
  PeerDoor door;
  std::string address;
};

Plan make_plan(const NetSpec& net, const std::vector<std::unique_ptr<Server>>& servers,
               const std::vector<std::unique_ptr<WorkerEnd>>& workers, Scheme of_fully_connected) {
  Plan plan;
  plan.epoch = Epoch(1);
  plan.batch_size = 4;
  for (const auto& worker : workers) plan.worker_addresses.push_back(worker->address);
  for (const auto& server : servers) plan.server_addresses.push_back(server->address);
  constexpr std::int64_t kChunkElements = 16384;  // many chunks: much to get out of order
  for (const std::size_t l : net.parameter_layers()) {
    const LayerIndex layer(static_cast<std::uint32_t>(plan.layers.size()));
    const bool by_factors =
        net.layers[l].type == LayerType::kFullyConnected && of_fully_connected == Scheme::kSfb;
    plan.layers.push_back({.name = net.layers[l].name,
                           .shape = net.layers[l].parameters[0].shape,
                           .parameters = net.layers[l].parameter_count(),
                           .scheme = by_factors ? Scheme::kSfb : Scheme::kPs});
    if (by_factors) continue;
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
  void tested(Iteration /*steps*/, const TestTotals& /*totals*/) override {}
  double last_loss = NAN;
};

/// Trains as worker `rank`; the bytes of the model afterwards. No worker leaves before `all_done`.
std::string train_as(std::uint32_t rank, WorkerEnd& end, const JobSpec& job, const NetSpec& net,
                     const Plan& plan, std::barrier<>& all_done) {
  TrafficProbe traffic(plan.layers.size());
  const int threads = 1 + static_cast<int>(rank % 2);  // must change nothing where sums are shared
  std::shared_ptr<Executor> executor =
      *make_cpu_executor(net, {.batch_size = job.batch_size,
                               .seed = job.init.seed,
                               .threads = plan.layers.back().scheme == Scheme::kSfb ? threads : 1});
  if (rank == 0) {
    initialise_parameters(net, job.init.seed,
                          [&](LayerIndex layer) { return executor->parameters(layer); });
  }
  auto factors = ExecutorFactors::create(executor, plan, job.optimizer, job.micro_batches);
  EXPECT_TRUE(factors.ok()) << factors.status();
  std::vector<LayerMemory> layers;
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    layers.push_back(
        {executor->parameters(LayerIndex(l)), executor->gradients(LayerIndex(l)), executor});
  }
  auto batches =
      TrainBatches::open(job.data, net.input_shape, net.classes,
                         {.workers = kWorkers, .rank = rank, .batch_size = job.batch_size});
  EXPECT_TRUE(batches.ok()) << batches.status();
  SyncClientOptions options;
  options.syncer.sfb = {.piece_bytes = 4096, .iterations = job.iterations, .check_every = 5};
  SyncClient sync(end.node.transport, plan, WorkerRank(rank), std::move(layers), options, &traffic,
                  &end.refusals, {&end.node.factors.shared, &end.door}, factors->get());
  sync.start();
  const std::atomic<bool> cancelled{false};
  Silent events;
  const absl::Status status = train({.job = &job,
                                     .rank = WorkerRank(rank),
                                     .executor = executor.get(),
                                     .sync = &sync,
                                     .train = batches->get(),
                                     .traffic = &traffic,
                                     .cancelled = &cancelled,
                                     .events = &events});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::isfinite(events.last_loss));
  const auto encoded = encode_model(*executor);
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  std::string model;
  for (const std::string_view piece : encoded->pieces()) model += piece;
  all_done.arrive_and_wait();  // as the coordinator does it
  return model;
}

/// The models of all workers.
std::vector<std::string> run_cluster(Nanoseconds max_delay, Scheme of_fully_connected) {
  const JobSpec job = digits_job();
  const auto net = resolve_network(job.model, ".");
  EXPECT_TRUE(net.ok()) << net.status();
  std::vector<std::unique_ptr<Server>> servers;
  for (std::uint32_t i = 0; i < kServers; ++i) {
    servers.push_back(std::make_unique<Server>(max_delay, i));
  }
  std::vector<std::unique_ptr<WorkerEnd>> ends;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    ends.push_back(std::make_unique<WorkerEnd>(max_delay, 1000 + rank));
  }
  const Plan plan = make_plan(*net, servers, ends, of_fully_connected);
  EXPECT_TRUE(validate(plan).ok()) << validate(plan);
  for (std::uint32_t i = 0; i < kServers; ++i) {
    auto assigned = std::make_shared<std::promise<void>>();
    servers[i]->service.assign(plan, ServerIndex(i), job.optimizer,
                               std::make_shared<TrafficProbe>(plan.layers.size()),
                               [assigned] { assigned->set_value(); });
    assigned->get_future().wait();
  }
  std::barrier<> all_done(kWorkers);
  std::vector<std::future<std::string>> workers;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(std::async(std::launch::async, [&, rank] {
      return train_as(rank, *ends[rank], job, *net, plan, all_done);
    }));
  }
  std::vector<std::string> models;
  for (auto& worker : workers) models.push_back(worker.get());
  for (const auto& end : ends) {
    const bool by_factors = of_fully_connected == Scheme::kSfb;
    if (max_delay > Nanoseconds{0}) {
      EXPECT_GT(end->node.chunks.delaying.delayed(), kIterations) << "nothing was delayed";
      EXPECT_EQ(end->node.factors.delaying.delayed() > kIterations, by_factors);
    }
    const Method& big = by_factors ? end->node.factors : end->node.chunks;
    EXPECT_EQ(big.shared.traffic().shared_bytes > 0, tensor_arena() != nullptr);
  }
  return models;
}

/// Undisturbed, delayed, and both again through shared memory once the process has an arena.
class Delays : public ::testing::TestWithParam<Scheme> {
 protected:
  static std::vector<std::string>& undisturbed(Scheme scheme) {
    static std::map<Scheme, std::vector<std::string>> models;
    return models[scheme];
  }
  void expect_the_same(const std::vector<std::string>& models, const char* how) const {
    const std::vector<std::string>& wanted = undisturbed(GetParam());
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
      EXPECT_TRUE(models[rank] == wanted[0]) << how << ", worker " << rank << ": another model";
    }
  }
};

// Gradients of the convolutions are summed in the same order everywhere, but their own bits depend
// on the number of threads; so worker r has the same number in every run.
TEST_P(Delays, OverSocketsChangeNoByteOfTheModel) {
  undisturbed(GetParam()) = run_cluster(Nanoseconds{0}, GetParam());
  ASSERT_GT(undisturbed(GetParam())[0].size(), 431080u * 4);
  expect_the_same(undisturbed(GetParam()), "undisturbed");
  expect_the_same(run_cluster(Milliseconds(15), GetParam()), "delayed");
}

TEST_P(Delays, ThroughSharedMemoryChangeNoByteEither) {
  if (undisturbed(GetParam()).empty()) GTEST_SKIP() << "the test over sockets comes first";
  if (tensor_arena() == nullptr) {
    ASSERT_TRUE(share_tensor_memory().ok());
  }
  expect_the_same(run_cluster(Nanoseconds{0}, GetParam()), "through shared memory");
  expect_the_same(run_cluster(Milliseconds(15), GetParam()), "through shared memory, delayed");
}

// One process can share its tensor memory but not take that back: sockets first.
INSTANTIATE_TEST_SUITE_P(Schemes, Delays, ::testing::Values(Scheme::kPs, Scheme::kSfb),
                         [](const auto& of) { return std::string(scheme_name(of.param)); });

}  // namespace
}  // namespace poseidon::delays_test
