#include "coordinator/watch/refusal_totals.h"

#include "common/base/text.h"
#include "coordinator/members/admission.h"

namespace poseidon {
namespace {

constexpr std::size_t kMaxReasonsPerNode = 64;
constexpr std::size_t kMaxReasonBytes = 64;

}  // namespace

void RefusalTotals::report(NodeId node, const v1::Heartbeat& heartbeat) {
  ByReason& totals = of_nodes_[node];
  for (const v1::RefusedCount& count : heartbeat.refused()) {
    const std::string reason(utf8_prefix(one_line(count.reason()), kMaxReasonBytes));
    if (totals.size() >= kMaxReasonsPerNode && !totals.contains(reason)) continue;
    totals[reason] = count.count();
  }
}

void RefusalTotals::on_departure(NodeId node) {
  const auto it = of_nodes_.find(node);
  if (it == of_nodes_.end()) return;
  for (const auto& [reason, count] : it->second) {
    if (departed_.size() < kMaxReasonsPerNode || departed_.contains(reason)) {
      departed_[reason] += count;
    }
  }
  of_nodes_.erase(it);
}

RefusalTotals::ByReason RefusalTotals::sum() const {
  ByReason all = own_;
  for (const auto& [reason, count] : departed_) all[reason] += count;
  for (const auto& [node, counts] : of_nodes_) {
    for (const auto& [reason, count] : counts) all[reason] += count;
  }
  return all;
}

}  // namespace poseidon
