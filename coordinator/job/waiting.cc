#include "coordinator/job/waiting.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace poseidon {

Waiting::Waiting(JobContext& job, Preparation& preparation) : job_(job), preparation_(preparation) {
  job_.message = text();
}

std::string Waiting::text() const {
  const std::string stores = job_.source.missing_text(job_.staffing.members());
  if (!stores.empty() && job_.staffing.has_enough()) return absl::StrCat("waits for ", stores);
  return absl::StrCat("waits for nodes: ", job_.staffing.members_text());
}

/// Some member has checkpoints of this epoch's number, made for another coordinator: the job's own
/// would have the same numbers.
bool Waiting::epoch_is_used() const {
  return std::ranges::any_of(job_.staffing.members(), [this](const NodeInfo& node) {
    return node.newest_epoch >= job_.run->epoch;
  });
}

void Waiting::on_members(Nanoseconds now, JobActions& actions) {
  job_.message = text();
  if (!job_.source.locate(job_.staffing.members())) return;
  if (epoch_is_used()) {
    const std::string& why = job_.next_epoch.why();
    if (!why.empty()) job_.message = absl::StrCat("waits for an epoch: ", why);
    if (!job_.next_epoch.is_due(now)) return;
    job_.next_epoch.ask(now);
    actions.emplace_back(TakeEpoch{});
    return;
  }
  if (!job_.staffing.choose_nodes(job_.source.manifest())) return;
  const EpochRun& before = *job_.run;
  job_.run =
      std::make_unique<EpochRun>(before, before.epoch, before.first_iteration, before.samples,
                                 static_cast<std::uint32_t>(job_.workers().size()));
  preparation_.begin(now, actions);
}

void Waiting::on_epoch(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now,
                       JobActions& actions) {
  if (!epoch.ok()) {  // the disk may have room again soon; waiting has its deadline
    job_.next_epoch.refused(std::string(epoch.status().message()), now);
    job_.message = absl::StrCat("waits for an epoch: ", job_.next_epoch.why());
    return;
  }
  job_.next_epoch.granted();
  job_.log(absl::StrFormat("it is in epoch %d instead of %d, of which a server has another "
                           "coordinator's checkpoints",
                           *epoch, job_.run->epoch.value()),
           actions);
  job_.run->epoch = Epoch(*epoch);
  on_members(now, actions);
}

void Waiting::tick(Nanoseconds now, JobActions& actions) {
  if (!job_.next_epoch.why().empty()) on_members(now, actions);
}

}  // namespace poseidon
