// The production path, wired as server/main.cc and worker/main.cc wire it: ShardService on one
// side, SyncClient on the other, nothing replaced. Over sockets when the process shares no tensor
// memory
// (--no-shared-memory, or another machine), through shared memory when it does.

#include <future>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/transport/variant.h"
#include "common/base/check.h"
#include "common/grpc/grpc_transport.h"
#include "common/memory/tensor_memory.h"
#include "common/transport/paced_transport.h"
#include "server/shard/shard_service.h"
#include "sync/client/sync_client.h"

namespace poseidon::bench {
namespace {

class PoseidonServer final : public ServerEnd {
 public:
  explicit PoseidonServer(const std::shared_ptr<Security>& security)
      : grpc_({.security = security}) {}
  ~PoseidonServer() override { grpc_.stop(); }

  absl::StatusOr<std::string> listen() override {
    POSEIDON_ASSIGN_OR_RETURN(std::string address, transport_.listen("127.0.0.1:0", &service_));
    grpc_.start();
    return address;
  }

  absl::Status serve(const Plan& plan, ServerIndex self) override {
    OptimizerSpec optimizer;
    optimizer.type = OptimizerType::kSgd;
    optimizer.learning_rate = 1.0;                           // Answer::kParameters
    auto assigned = std::make_shared<std::promise<void>>();  // outlives set_value on the loop
    service_.assign(plan, self, optimizer, std::make_shared<TrafficProbe>(plan.layers.size()),
                    [assigned] { assigned->set_value(); });
    if (assigned->get_future().wait_for(kEndTimeout) != std::future_status::ready) {
      return absl::DeadlineExceededError("the shard was not assigned");
    }
    return absl::OkStatus();
  }

 private:
  RefusalCounts refusals_;
  GrpcTransport grpc_;
  PacedTransport transport_{&grpc_, tensor_arena(), server_window_bytes()};
  ShardService service_{
      &transport_, &refusals_, [](const std::string& peer, const Objection& objection) {
        give_up(absl::InternalError(absl::StrCat("refused from ", peer, ": ", objection.message)));
      }};
};

class PoseidonWorker final : public WorkerEnd {
 public:
  explicit PoseidonWorker(const WorkerContext& context)
      : context_(context),
        traffic_(context.plan->layers.size()),
        grpc_({.security = context.security}) {}
  ~PoseidonWorker() override {
    sync_.reset();
    grpc_.stop();
  }

  absl::Status connect() override {
    Workload& workload = *context_.workload;
    std::vector<LayerMemory> layers;
    std::size_t begin = 0;
    for (const PlanLayer& layer : context_.plan->layers) {
      const auto size = static_cast<std::size_t>(layer.parameters);
      // No owner: the workload outlives us, and so everything that refers to its memory.
      layers.push_back({.parameters = workload.results().subspan(begin, size),
                        .gradients = std::as_const(workload).gradients().subspan(begin, size),
                        .owner = nullptr});
      begin += size;
    }
    grpc_.start();
    SyncClientOptions options;
    options.wait_timeout = kEndTimeout;
    sync_ = std::make_unique<SyncClient>(&transport_, *context_.plan, context_.rank,
                                         std::move(layers), options, &traffic_, &refusals_);
    sync_->start();
    return sync_->wait_all_parameters(0);
  }

  absl::Status iterate(Iteration iteration) override {
    // As backpropagation does, only that it takes no time.
    for (std::size_t l = context_.plan->layers.size(); l-- > 0;) {
      sync_->gradient_ready(LayerIndex(static_cast<std::uint32_t>(l)), iteration);
    }
    return sync_->wait_all_parameters(iteration + 1);
  }

 private:
  const WorkerContext context_;
  RefusalCounts refusals_;
  TrafficProbe traffic_;
  GrpcTransport grpc_;
  PacedTransport transport_{&grpc_, tensor_arena()};
  std::unique_ptr<SyncClient> sync_;
};

}  // namespace

std::unique_ptr<ServerEnd> make_poseidon_server(const std::shared_ptr<Security>& security) {
  return std::make_unique<PoseidonServer>(security);
}
std::unique_ptr<WorkerEnd> make_poseidon_worker(const WorkerContext& context) {
  return std::make_unique<PoseidonWorker>(context);
}

}  // namespace poseidon::bench
