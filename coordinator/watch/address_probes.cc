#include "coordinator/watch/address_probes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

/// At once: each takes some descriptors.
constexpr std::size_t kMostAtOnce = 32;
/// Between two attempts at an address that did not answer.
constexpr std::chrono::seconds kAgain{10};

}  // namespace

AddressProbes::AddressProbes(Seams seams, Mutex& mutex, Tell tell)
    : reach_(std::move(seams.reach)),
      mutex_(mutex),
      tell_(std::move(tell)),
      background_(std::move(seams.background)) {
  POSEIDON_CHECK(reach_ == nullptr || background_ != nullptr, "somewhere to block");
}

AddressProbes::~AddressProbes() { stop_ = true; }

void AddressProbes::on_join(const NodeInfo& node) {
  if (reach_ == nullptr || node.address.empty()) return;
  waiting_.insert_or_assign(node.id, node);
  if (!std::exchange(is_looking_, true)) background_->enqueue([this] { look(); });
}

void AddressProbes::tick(const std::vector<NodeInfo>& members, Nanoseconds now) {
  if (unreached_.empty() || now - looked_ < kAgain) return;
  looked_ = now;
  const auto is_member = [&](NodeId id) {
    return std::ranges::find(members, id, &NodeInfo::id) != members.end();
  };
  std::erase_if(unreached_, [&](const auto& entry) { return !is_member(entry.first); });
  for (const NodeInfo& node : members) {
    if (unreached_.contains(node.id)) on_join(node);
  }
}

std::string AddressProbes::note(NodeId node) const {
  const auto found = unreached_.find(node);
  return found == unreached_.end() ? "" : found->second;
}

void AddressProbes::look() {
  std::vector<NodeInfo> nodes;
  std::vector<std::string> addresses;
  {
    const MutexLock lock(mutex_);
    while (!waiting_.empty() && nodes.size() < kMostAtOnce) {
      const auto next = waiting_.begin();
      addresses.push_back(next->second.address);
      nodes.push_back(std::move(next->second));
      waiting_.erase(next);
    }
  }
  const std::vector<absl::Status> answers = reach_(addresses, stop_);
  if (stop_) return;
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < nodes.size(); ++i) take_answer(nodes[i], answers[i]);
  is_looking_ = !waiting_.empty();
  if (is_looking_) background_->enqueue([this] { look(); });
}

void AddressProbes::take_answer(const NodeInfo& node, const absl::Status& status) {
  const auto before = unreached_.find(node.id);
  if (status.ok()) {
    if (before == unreached_.end()) return;
    unreached_.erase(before);
    tell_(/*is_bad=*/false, absl::StrCat(node_text(node), " takes connections now"));
    return;
  }
  std::string text = absl::StrCat(
      "the coordinator cannot connect to ", node.address, " (", status.message(),
      "): do other machines? If not, start it with --listen and an address that they reach, and "
      "open the port in firewalls");
  if (before != unreached_.end() && before->second == text) return;
  tell_(/*is_bad=*/true, absl::StrCat(node_text(node), ": ", text));
  unreached_.insert_or_assign(node.id, std::move(text));
}

}  // namespace poseidon
