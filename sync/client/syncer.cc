#include "sync/client/syncer.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "sync/relay/relay.h"
#include "sync/relay/relay_service.h"

namespace poseidon {
namespace {

bool has_sfb_layers(const Plan& plan) {
  return std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const PlanLayer& layer) { return layer.scheme == Scheme::kSfb; });
}

bool leads(const Plan& plan, WorkerRank rank) {
  return is_behind_relay(plan, rank) && leader_of(plan, rank) == rank;
}

}  // namespace

Syncer::Syncer(Transport* transport, Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
               SyncerOptions options, SyncerEvents* events, TrafficProbe* traffic,
               RefusalCounts* refusals, PeerAccess peers, FactorStacks* stacks)
    : transport_(transport),
      plan_(std::move(plan)),
      rank_(rank),
      options_(std::move(options)),
      events_(events),
      traffic_(traffic),
      peers_(peers),
      factors_(has_sfb_layers(plan_)
                   ? std::make_unique<FactorExchange>(plan_, rank, layers, stacks, peers, options_,
                                                      events, traffic, refusals)
                   : nullptr),
      links_(is_behind_relay(plan_, rank) ? peers.relays : transport,
             PsRoute(is_behind_relay(plan_, rank) ? behind_relay(plan_, rank) : plan_, rank,
                     std::move(layers), options_.first_iteration, options_.team),
             is_behind_relay(plan_, rank) ? ChunkLinks::Towards::kRelay
                                          : ChunkLinks::Towards::kServers,
             options_, events, traffic, refusals) {
  POSEIDON_CHECK(!is_behind_relay(plan_, rank) || peers.relays != nullptr,
                 "a plan with leaders needs a way to the relay");
  POSEIDON_CHECK(!leads(plan_, rank) || peers.relay != nullptr, "who leads has a relay");
}

Syncer::~Syncer() {
  if (leads(plan_, rank_)) peers_.relay->end(plan_.epoch);
}

void Syncer::start() {
  if (leads(plan_, rank_)) {
    peers_.relay->begin(plan_, rank_, transport_, options_, traffic_,
                        [this](const absl::Status& status) { events_->sync_failed(status); });
  }
  const bool gives = rank_ == WorkerRank(0) && options_.first_iteration == 0;
  links_.start(gives ? ChunkLinks::FirstParameters::kGiven : ChunkLinks::FirstParameters::kFetched);
  if (factors_ != nullptr) factors_->start();
}

std::vector<AwaitedData> Syncer::awaited_data(LayerIndex layer) const {
  std::vector<AwaitedData> awaited;
  if (plan_.layers[layer.value()].scheme == Scheme::kSfb) {
    awaited = factors_->awaited_data(layer);
    // With all factors here, its step waits for norms, which come of the other layers.
    for (std::uint32_t other = 0; awaited.empty() && other < plan_.layers.size(); ++other) {
      awaited = links_.awaited(LayerIndex(other));
    }
  } else {
    awaited = links_.awaited(layer);
    if (leads(plan_, rank_)) {
      for (AwaitedData& data : peers_.relay->awaited(layer)) awaited.push_back(std::move(data));
    }
  }
  if (awaited.empty()) awaited.push_back({.layer = layer, .chunk = {}, .ranks = {}, .server = {}});
  return awaited;
}

}  // namespace poseidon
