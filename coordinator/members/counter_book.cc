#include "coordinator/members/counter_book.h"

#include <cmath>
#include <string>

#include "common/base/text.h"
#include "coordinator/members/admission.h"

namespace poseidon {
namespace {

using Refusals = google::protobuf::RepeatedPtrField<v1::RefusedCount>;

bool is_figure(double value) { return std::isfinite(value) && value >= 0.0; }

void keep_refusals(const Refusals& from, Refusals& to) {
  for (const v1::RefusedCount& count : from) {
    if (to.size() >= CounterBook::kMaxReasons) return;
    v1::RefusedCount& kept = *to.Add();
    kept.set_reason(
        std::string(utf8_prefix(one_line(count.reason()), CounterBook::kMaxReasonBytes)));
    kept.set_count(count.count());
  }
}

}  // namespace

void CounterBook::take(NodeId node, const v1::Heartbeat& heartbeat) {
  if (!heartbeat.has_counters()) return;
  v1::CountersStatus& kept = nodes_[node];
  kept.set_reports(kept.reports() + 1);
  v1::NodeCounters& counters = *kept.mutable_counters();
  counters = heartbeat.counters();
  counters.clear_refused_connections();
  keep_refusals(heartbeat.counters().refused_connections(),
                *counters.mutable_refused_connections());
  kept.clear_refused_messages();
  keep_refusals(heartbeat.refused(), *kept.mutable_refused_messages());
  if (!is_figure(counters.compute_seconds())) counters.clear_compute_seconds();
  if (!is_figure(counters.gpu_utilization())) counters.clear_gpu_utilization();
  if (!is_figure(counters.gpu_celsius())) counters.clear_gpu_celsius();
  counters.DiscardUnknownFields();
}

const v1::CountersStatus* CounterBook::of(NodeId node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? nullptr : &found->second;
}

}  // namespace poseidon
