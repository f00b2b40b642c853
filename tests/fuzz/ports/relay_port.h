#pragma once

// The relay of a group of workers.

#include <array>
#include <memory>

#include "common/base/check.h"
#include "sync/relay/relay_service.h"
#include "tests/fuzz/ports/port.h"
#include "tests/support/toy_plan.h"

namespace poseidon::fuzz {

class RelayPort final : public Port {
 public:
  RelayPort(Transport* transport, std::uint8_t job)
      : transport_(transport), service_(transport, &refusals_, {}) {
    POSEIDON_CHECK(transport->listen("victim", &service_).ok(), "a free address");
    plan_ = testing_support::toy_plan(kWorkers, 1, {10, 12, 7}, kChunkElements);
    plan_.server_addresses = {"peer"};
    plan_.worker_addresses = {"victim", "first", "peer"};
    plan_.leaders = {WorkerRank(0), WorkerRank(0),
                     job / 4 % 2 == 1 ? WorkerRank(2) : WorkerRank(0)};
    plan_.wire_type =
        std::array{ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}[job % 3];
    options_.first_iteration = job / 8 % 2 == 0 ? 0 : 3;
    begin();
  }

  Words believable(Input& input) override { return believable_chunk(input, plan_); }

  void act(std::uint8_t how) override {
    if (how % 4 == 1) service_.end(plan_.epoch);
    if (how % 4 == 0) {
      plan_.epoch = Epoch(plan_.epoch.value() + 1);
      begin();
    }
  }

  void check() const override {
    if (service_.relay() == nullptr) return;
    POSEIDON_CHECK(service_.relay()->pending_bytes() <=
                       static_cast<std::int64_t>(kWorkers * 29 * sizeof(float)),
                   "an iteration of each worker at most");
  }

 private:
  void begin() {
    service_.begin(plan_, WorkerRank(0), transport_, options_, &traffic_,
                   [this, epoch = plan_.epoch](const absl::Status& status) {
                     POSEIDON_CHECK(!status.ok() && failed_ < epoch, "once, with its reason");
                     failed_ = epoch;
                   });
  }

  Transport* const transport_;
  RefusalCounts refusals_;
  TrafficProbe traffic_{3};
  Plan plan_;
  SyncerOptions options_;
  Epoch failed_;
  RelayService service_;
};

}  // namespace poseidon::fuzz
