#include "cli/doctor/doctor_not_training.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace poseidon {
namespace {

/// Nodes of the job in one of these states, for people.
template <typename... State>
std::vector<std::string> nodes_in(const v1::GetStatusResponse& status, const State&... states) {
  std::vector<std::string> found;
  const auto look = [&](const auto& nodes, const char* role) {
    for (const v1::NodeStatus& node : nodes) {
      if (node.rank() < 0 || !((node.state() == states) || ...)) continue;
      found.push_back(absl::StrCat(role, " ", node.rank(), " (", node.address(), ") is ",
                                   node.state(), node.note().empty() ? "" : ": ", node.note()));
    }
  };
  look(status.servers(), "server");
  look(status.workers(), "worker");
  return found;
}

}  // namespace

bool is_before_training(const v1::GetStatusResponse& status) {
  return status.state() == "waiting" || status.state() == "preparing" ||
         status.state() == "recovering";
}

Finding not_training(const v1::GetStatusResponse& status) {
  Finding finding{.kind = Finding::Kind::kNotTraining};
  const std::vector<std::string> gone = nodes_in(status, "lost", "away");
  const std::vector<std::string> busy = nodes_in(status, "preparing");
  std::vector<std::string> awaited = gone;
  awaited.insert(awaited.end(), busy.begin(), busy.end());
  finding.what =
      absl::StrCat("job ", status.job_id(), " is ", status.state(), " and does not train",
                   status.message().empty() ? "" : ": ", status.message());
  if (!awaited.empty()) absl::StrAppend(&finding.what, "; ", absl::StrJoin(awaited, ", "));
  if (!gone.empty()) {
    finding.remedy =
        "look in the log of the node that is gone why it ended, and start it or another one; ask "
        "doctor again when the job trains";
  } else if (status.state() == "waiting") {
    finding.remedy = "start the nodes that it waits for; ask doctor again when the job trains";
  } else if (!busy.empty()) {
    finding.remedy =
        "see in the log of the node that prepares what it does; ask doctor again when the job "
        "trains";
  } else {
    finding.remedy = "ask doctor again when the job trains; the coordinator's log has each step";
  }
  return finding;
}

}  // namespace poseidon
