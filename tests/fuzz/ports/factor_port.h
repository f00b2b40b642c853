#pragma once

// A worker's port for factors from other workers.

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/wire/factor_wire.h"
#include "sync/client/factor_exchange.h"
#include "tests/fuzz/ports/port.h"
#include "tests/support/toy_plan.h"

namespace poseidon::fuzz {

class FactorPort final : public Port, public SyncerEvents {
 public:
  FactorPort(Transport* transport, std::uint8_t job) : door_(transport, &refusals_) {
    POSEIDON_CHECK(transport->listen("victim", &door_).ok(), "a free address");
    plan_ = testing_support::toy_plan(kWorkers, 1, {kParameters}, kChunkElements);
    testing_support::send_by_factors(plan_, LayerIndex(0), 3, 4);
    plan_.batch_size = 2;
    plan_.worker_addresses = {"first", "victim", "peer"};
    options_.first_iteration = job % 2 == 0 ? 0 : 3;
    options_.sfb = {.piece_bytes = kPieceElements * sizeof(float),
                    .iterations = options_.first_iteration + 4,
                    .check_every = 2};
    initialised_ = options_.first_iteration > 0;
    own_ = complete_ = options_.first_iteration - 1;
    stacks_ = std::make_unique<FactorStacks>(plan_, WorkerRank(1));
    exchange_ = std::make_unique<FactorExchange>(
        plan_, WorkerRank(1),
        std::vector<LayerMemory>{
            {.parameters = parameters_.floats(), .gradients = {}, .owner = parameters_.owner()}},
        stacks_.get(), PeerAccess{transport, &door_}, options_, this, &traffic_, &refusals_);
    exchange_->start();
  }

  Words believable(Input& input) override {
    const std::uint8_t how = input.byte();
    const std::uint8_t where = input.byte();
    const std::uint8_t what = input.byte();
    FactorHeader header;
    header.kind = static_cast<FactorKind>(1 + how % 6);
    header.epoch = Epoch(plan_.epoch.value() + (what == 255 ? 1 : 0));
    const bool greets = header.kind == FactorKind::kHello;
    header.rank = WorkerRank(where % 4);
    std::string payload;
    if (!greets) {
      header.iteration = options_.first_iteration + what / 16 % 6;
      if (what % 16 == 15) header.iteration -= 2;
      header.layer = LayerIndex(what == 254 ? 1 : 0);
    }
    const bool of_rows =
        header.kind == FactorKind::kOutputGradient || header.kind == FactorKind::kInput;
    if (of_rows) header.rows = plan_.batch_size + (what == 253 ? 1 : 0);
    const std::int64_t elements = header.kind == FactorKind::kOutputGradient ? plan_.batch_size * 3
                                  : header.kind == FactorKind::kInput        ? plan_.batch_size * 4
                                  : header.kind == FactorKind::kParameters   ? kParameters
                                                                             : 0;
    if (elements > 0) {
      header.element_type = ElementType::kFloat32;
      header.offset = where / 4 % piece_count(elements, kPieceElements) * kPieceElements;
      const std::int64_t here = std::min(kPieceElements, elements - header.offset);
      payload = encoded(ElementType::kFloat32,
                        static_cast<std::size_t>(here + (what == 252 ? 1 : 0)), kNumbers[how / 32]);
    }
    if (header.kind == FactorKind::kDigest) header.digest = what % 4;
    return {encode_prefix(header, payload.size()), payload};
  }

  /// The trainer's next own set, once it has the last set of all workers.
  void act(std::uint8_t how) override {
    if (failed_ || !initialised_ || complete_ < own_ || own_ + 1 > options_.sfb.iterations) {
      return;
    }
    ++own_;
    if (own_ < options_.sfb.iterations) {
      const OwnFactors own = stacks_->own(LayerIndex(0), own_);
      std::ranges::fill(own.output_gradient, 1.0F);
      std::ranges::fill(own.input, 2.0F);
    }
    exchange_->factors_ready(LayerIndex(0), own_, how % 2);
  }

  void layer_initialised(LayerIndex /*layer*/, Iteration version) override {
    POSEIDON_CHECK(version == options_.first_iteration, "the initial ones, or a checkpoint's");
    initialised_ = true;
  }
  void factors_complete(LayerIndex layer, Iteration iteration) override {
    POSEIDON_CHECK(iteration == own_, "no set is whole without one's own part");
    complete_ = iteration;
    if (iteration >= options_.sfb.iterations) return;
    const StackedFactors all = stacks_->stacked(layer, iteration);
    const float sum = *std::max_element(all.inputs.begin(), all.inputs.end());
    POSEIDON_CHECK(!(sum > std::numeric_limits<float>::max()), "finite, or refused");
  }
  void sync_failed(const absl::Status& status) override {
    POSEIDON_CHECK(!failed_ && !status.ok(), "the last event, with its reason");
    failed_ = true;
  }

 private:
  static constexpr std::int64_t kParameters = 15;  ///< 3 x 4 and a bias
  static constexpr std::int64_t kPieceElements = 4;

  RefusalCounts refusals_;
  TrafficProbe traffic_{1};
  PeerDoor door_;
  FloatBuffer parameters_{kParameters};
  Plan plan_;
  SyncerOptions options_;
  bool initialised_ = false, failed_ = false;
  Iteration own_ = -1, complete_ = -1;
  std::unique_ptr<FactorStacks> stacks_;
  std::unique_ptr<FactorExchange> exchange_;
};

}  // namespace poseidon::fuzz
