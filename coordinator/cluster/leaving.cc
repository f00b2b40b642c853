#include "coordinator/cluster/leaving.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace poseidon {

void Leaving::on_goodbye(NodeId from, const std::string& reason) {
  const NodeInfo* const node = membership_.find(from);
  if (node == nullptr || !goodbyes_.insert(from).second) return;
  watch_.note(EventKind::kLeave,
              absl::StrCat(node_text(*node), " (node ", from.value(), ") says goodbye (", reason,
                           "): the job goes on without it"));
  membership_.set_leaving(from, true);
  host_.members_changed();
}

absl::StatusOr<v1::DrainNodeResponse> Leaving::drain(const v1::DrainNodeRequest& request) {
  const NodeInfo* found = nullptr;
  std::vector<std::string> addresses;
  const std::vector<NodeInfo> nodes = membership_.nodes();
  for (const NodeInfo& node : nodes) {
    if (node.address.empty()) continue;
    addresses.push_back(node.address);
    if (node.address == request.node()) found = &node;
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no node at ", printable(request.node()), ": ",
                     addresses.empty() ? "no node is here" : absl::StrJoin(addresses, ", ")));
  }
  const NodeId id = found->id;
  if (!request.undo() && host_.is_active() && host_.job()->view().roster.has_part(id)) {
    const JobView view = host_.job()->view();
    if (!view.staffing.can_do_without(*view.roster.find(id), nullptr, context_.now())) {
      return absl::FailedPreconditionError(absl::StrCat(
          host_.text(), " and cannot go on without ", node_text(*found), ": start another ",
          role_name(found->role), " first, or end the job (poseidon stop)"));
    }
  }
  if (goodbyes_.contains(id)) {
    if (request.undo()) {
      return absl::FailedPreconditionError(
          absl::StrCat(node_text(*found), " said goodbye itself: it is about to end"));
    }
  } else if (found->is_leaving == request.undo()) {
    watch_.note(EventKind::kLeave,
                absl::StrCat(node_text(*found), " (node ", id.value(), ") ",
                             request.undo() ? "may be used again" : "is drained by an operator"));
    membership_.set_leaving(id, !request.undo());
    host_.members_changed();
  }
  v1::DrainNodeResponse out;
  out.set_role(found->role == NodeRole::kServer ? v1::NODE_ROLE_SERVER : v1::NODE_ROLE_WORKER);
  out.set_node_id(id.value());
  out.set_drained(!request.undo() && !is_needed(id));
  return out;
}

bool Leaving::is_needed(NodeId id) const { return host_.job() && needs_node(*host_.job(), id); }

void Leaving::tick() {
  std::erase_if(goodbyes_, [this](NodeId id) {
    if (membership_.find(id) == nullptr) return true;
    if (is_needed(id) || !streams_.has_stream(id)) return false;
    v1::CoordinatorMessage message;
    message.mutable_released();
    streams_.send(id, message);
    return true;
  });
}

}  // namespace poseidon
