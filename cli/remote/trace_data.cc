#include "cli/remote/trace_data.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

std::optional<std::uint32_t> from_one(std::uint32_t number) {
  return number == 0 ? std::nullopt : std::optional(number - 1);
}

/// Within it nothing overflows, whatever a node says.
constexpr std::int64_t kMostNumber = std::int64_t{1} << 60;

Nanoseconds to_time(std::uint64_t ns) {
  return Nanoseconds(
      static_cast<Nanoseconds::rep>(std::min(ns, static_cast<std::uint64_t>(kMostNumber))));
}

Nanoseconds to_offset(std::int64_t ns) {
  return Nanoseconds(std::clamp(ns, -kMostNumber, kMostNumber));
}

TimedEvent to_timed(const v1::TraceEvent& event, Nanoseconds offset) {
  TimedEvent timed;
  timed.stage = static_cast<Stage>(event.stage());
  timed.begin = to_time(event.begin_ns()) - offset;
  timed.end = timed.begin + to_time(event.duration_ns());
  timed.iteration =
      static_cast<Iteration>(std::min(event.iteration(), static_cast<std::uint64_t>(kMostNumber)));
  timed.layer = from_one(event.layer());
  timed.chunk = from_one(event.chunk());
  timed.peer = from_one(event.peer());
  timed.bytes = event.bytes();
  if (event.relay_end() <= static_cast<std::uint32_t>(RelayEnd::kRelay)) {
    timed.relay_end = static_cast<RelayEnd>(event.relay_end());
  }
  return timed;
}

RelayEnd other_end(RelayEnd end) {
  return end == RelayEnd::kWorker  ? RelayEnd::kRelay
         : end == RelayEnd::kRelay ? RelayEnd::kWorker
                                   : RelayEnd::kNone;
}

}  // namespace

bool TraceData::add(const v1::TracePart& part) {
  switch (part.body_case()) {
    case v1::TracePart::kHead:
      head = part.head();
      return nodes.empty();
    case v1::TracePart::kNode:
      nodes.push_back({.node = part.node(), .events = {}});
      return true;
    case v1::TracePart::kEvents:
      if (nodes.empty()) return false;
      nodes.back().events.insert(nodes.back().events.end(), part.events().events().begin(),
                                 part.events().events().end());
      return true;
    case v1::TracePart::kTail:
      notes.assign(part.tail().notes().begin(), part.tail().notes().end());
      has_tail = true;
      return true;
    case v1::TracePart::BODY_NOT_SET:
      break;
  }
  return false;
}

std::string TimedNode::name() const {
  return absl::StrCat(is_server ? "server " : "worker ", index,
                      address.empty() ? "" : absl::StrCat(" (", address, ")"));
}

std::vector<TimedNode> timed_nodes(const TraceData& data) {
  std::vector<TimedNode> nodes;
  for (const TraceData::Node& node : data.nodes) {
    TimedNode timed;
    timed.is_server = node.node.role() == v1::NODE_ROLE_SERVER;
    timed.index = node.node.index();
    timed.address = node.node.address();
    timed.clock_error = to_time(node.node.clock_error_ns());
    const Nanoseconds offset = to_offset(node.node.clock_offset_ns());
    for (const v1::TraceEvent& event : node.events) {
      if (event.stage() >= static_cast<std::uint32_t>(Stage::kCount)) continue;
      timed.events.push_back(to_timed(event, offset));
    }
    std::stable_sort(timed.events.begin(), timed.events.end(),
                     [](const TimedEvent& a, const TimedEvent& b) { return a.begin < b.begin; });
    nodes.push_back(std::move(timed));
  }
  return nodes;
}

std::vector<TracedMessage> traced_messages(const std::vector<TimedNode>& nodes) {
  // Where each message was used: from, to, iteration, chunk or layer. Several pieces of a layer's
  // factors are told apart by their order alone, which a stream keeps.
  struct Uses {
    std::vector<Nanoseconds> at;
    std::size_t taken = 0;
  };
  using Key = std::tuple<std::size_t, std::size_t, Iteration, RelayEnd, bool, std::uint32_t>;
  std::map<Key, Uses> uses;
  std::map<std::pair<bool, std::uint32_t>, std::size_t> positions;
  for (std::size_t n = 0; n < nodes.size(); ++n)
    positions[{nodes[n].is_server, nodes[n].index}] = n;
  // Of an event at node n; the other end is a server only for a worker's chunks.
  const auto peer_of = [&](std::size_t n, const TimedEvent& event) -> std::optional<std::size_t> {
    if (!event.peer) return std::nullopt;
    const bool is_server =
        !nodes[n].is_server && event.chunk.has_value() && event.relay_end == RelayEnd::kNone;
    const auto found = positions.find({is_server, *event.peer});
    return found == positions.end() ? std::nullopt : std::optional(found->second);
  };
  const auto what = [](const TimedEvent& event) {
    return event.chunk ? *event.chunk : event.layer.value_or(0);
  };
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (const TimedEvent& event : nodes[n].events) {
      const bool uses_it =
          event.stage == Stage::kSum || event.stage == Stage::kStep || event.stage == Stage::kCopy;
      const auto from = uses_it ? peer_of(n, event) : std::nullopt;
      if (!from) continue;
      uses[{*from, n, event.iteration, event.relay_end, event.chunk.has_value(), what(event)}]
          .at.push_back(event.begin);
    }
  }
  std::vector<TracedMessage> messages;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (const TimedEvent& event : nodes[n].events) {
      if (event.stage != Stage::kSend) continue;
      const auto to = peer_of(n, event);
      if (!to) continue;
      const auto used = uses.find({n, *to, event.iteration, other_end(event.relay_end),
                                   event.chunk.has_value(), what(event)});
      if (used == uses.end() || used->second.taken == used->second.at.size()) continue;
      messages.push_back({.from = n,
                          .to = *to,
                          .sent = event.begin,
                          .arrived = used->second.at[used->second.taken++],
                          .iteration = event.iteration,
                          .bytes = event.bytes,
                          .in_group = event.relay_end != RelayEnd::kNone});
    }
  }
  return messages;
}

}  // namespace poseidon
