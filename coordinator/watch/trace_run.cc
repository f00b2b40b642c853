#include "coordinator/watch/trace_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/probes/tracer.h"

namespace poseidon {
namespace {

std::string text_of(const TraceMember& member) {
  return absl::StrCat(role_name(member.role), " ", member.index,
                      member.address.empty() ? "" : absl::StrCat(" (", member.address, ")"));
}

}  // namespace

TraceRun::TraceRun(std::uint64_t number, v1::TraceHead head, std::vector<TraceMember> members,
                   Nanoseconds deadline)
    : number_(number), head_(std::move(head)), deadline_(deadline) {
  for (TraceMember& member : members) nodes_.push_back({.member = std::move(member)});
}

TraceRun::Node* TraceRun::find(NodeId id) {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [id](const Node& node) { return node.member.id == id; });
  return found == nodes_.end() ? nullptr : &*found;
}

TraceActions TraceRun::begin(Nanoseconds now) {
  TraceActions actions;
  for (Node& node : nodes_) {
    v1::CoordinatorMessage message;
    v1::BeginTrace& begin = *message.mutable_begin_trace();
    begin.set_trace(number_);
    begin.set_first_iteration(head_.first_iteration());
    begin.set_iterations(head_.iterations());
    actions.sends.emplace_back(node.member.id, std::move(message));
    ask_clock(node, now, actions);
  }
  return actions;
}

// ---- clocks ----

void TraceRun::ask_clock(Node& node, Nanoseconds now, TraceActions& actions) const {
  if (!node.gone.empty() || node.asks >= kMostEchoes) return;
  v1::CoordinatorMessage message;
  message.mutable_clock()->set_number(++node.asks);
  node.asked = node.asks;
  node.asked_at = now;
  actions.sends.emplace_back(node.member.id, std::move(message));
}

TraceActions TraceRun::on_echo(NodeId id, const v1::ClockEcho& echo, Nanoseconds now) {
  TraceActions actions;
  Node* node = find(id);
  if (node == nullptr || node->asked == 0 || echo.number() != node->asked) return actions;
  node->asked = 0;
  const auto time = [](std::uint64_t ns) { return Nanoseconds(static_cast<Nanoseconds::rep>(ns)); };
  node->clock.add({.asked = node->asked_at,
                   .received = time(echo.received_ns()),
                   .sent = time(echo.sent_ns()),
                   .answered = now});
  if (recording_ && node->asks < kFirstEchoes) ask_clock(*node, now, actions);
  return actions;
}

// ---- the iterations pass ----

TraceActions TraceRun::tick(const TraceProgress& progress, Nanoseconds now) {
  TraceActions actions;
  if (done_) return actions;
  if (recording_) {
    const auto end = static_cast<Iteration>(head_.first_iteration() + head_.iterations());
    // One more: only then all parameters that their steps made have arrived.
    const bool complete = progress.completed > end;
    if (complete || !progress.trains || now >= deadline_) {
      if (!progress.trains && progress.completed < end) {
        notes_.push_back(absl::StrCat(
            "the job ", progress.state, " when ",
            std::max(progress.completed - static_cast<Iteration>(head_.first_iteration()),
                     Iteration{0}),
            " of the ", head_.iterations(),
            " requested iterations were done: the trace is partial"));
      } else if (!complete && progress.trains) {
        notes_.push_back(absl::StrCat(
            "time is up: iteration ", progress.completed, " is done, ", end - 1,
            " is the last one requested: the trace is partial; ask for fewer, or wait longer"));
      }
      collect(now, actions);
      return actions;
    }
    for (Node& node : nodes_) {
      if (node.asked == 0) ask_clock(node, now, actions);
    }
    return actions;
  }
  if (now - collecting_since_ >= kCollectTimeout) {
    for (std::size_t i = at_; i < nodes_.size(); ++i) {
      notes_.push_back(absl::StrFormat("%s is missing: collecting took longer than %g s",
                                       text_of(nodes_[i].member), seconds(kCollectTimeout)));
    }
    finish(actions);
  } else if (!waits_for_operator_ && now - asked_at_ >= kAnswerTimeout) {
    notes_.push_back(absl::StrFormat(
        "%s did not answer within %g s: %s", text_of(nodes_[at_].member), seconds(kAnswerTimeout),
        from_ == 0 ? "its events are missing" : "some of its events are missing"));
    next_node(now, actions);
  }
  return actions;
}

// ---- collecting ----

void TraceRun::collect(Nanoseconds now, TraceActions& actions) {
  recording_ = false;
  collecting_since_ = now;
  v1::TracePart part;
  *part.mutable_head() = head_;
  actions.parts.push_back(std::move(part));
  at_ = 0;
  from_ = 0;
  waits_for_operator_ = true;
}

/// Asks the node at at_, or the first connected one after it.
void TraceRun::fetch(Nanoseconds now, TraceActions& actions) {
  while (collecting() && !nodes_[at_].gone.empty()) {
    notes_.push_back(
        absl::StrCat(text_of(nodes_[at_].member), " ", nodes_[at_].gone, ": ",
                     from_ == 0 ? "its events are missing" : "some of its events are missing"));
    ++at_;
    from_ = 0;
  }
  if (!collecting()) {
    finish(actions);
    return;
  }
  v1::CoordinatorMessage message;
  message.mutable_fetch_trace()->set_trace(number_);
  message.mutable_fetch_trace()->set_from(from_);
  actions.sends.emplace_back(nodes_[at_].member.id, std::move(message));
  asked_at_ = now;
  waits_for_operator_ = false;
}

void TraceRun::next_node(Nanoseconds now, TraceActions& actions) {
  ++at_;
  from_ = 0;
  fetch(now, actions);
}

TraceActions TraceRun::on_piece(NodeId id, const v1::TracePiece& piece, Nanoseconds now) {
  TraceActions actions;
  if (done_ || recording_ || waits_for_operator_ || !collecting()) return actions;
  Node& node = nodes_[at_];
  if (node.member.id != id || piece.trace() != number_ || piece.from() != from_) return actions;
  const auto events = static_cast<std::size_t>(piece.events_size());
  const bool sensible = piece.total() <= Tracer::kMaxEvents && events <= Tracer::kSliceEvents &&
                        from_ + events <= piece.total() && (events > 0 || from_ == piece.total());
  if (!sensible) {
    notes_.push_back(absl::StrCat(text_of(node.member), " answered nonsense (", events,
                                  " events at ", from_, " of ", piece.total(),
                                  "): is it of another version?"));
    next_node(now, actions);
    return actions;
  }
  if (from_ == 0) {
    v1::TracePart part;
    v1::TraceNode& told = *part.mutable_node();
    told.set_role(node.member.role == NodeRole::kWorker ? v1::NODE_ROLE_WORKER
                                                        : v1::NODE_ROLE_SERVER);
    told.set_index(node.member.index);
    told.set_address(node.member.address);
    told.set_clock_offset_ns(node.clock.best().offset.count());
    told.set_clock_error_ns(static_cast<std::uint64_t>(node.clock.best().error.count()));
    told.set_clock_echoes(node.clock.count());
    told.set_dropped(piece.dropped());
    actions.parts.push_back(std::move(part));
    if (piece.dropped() > 0) {
      notes_.push_back(absl::StrCat(text_of(node.member), ": ", piece.dropped(),
                                    " events did not fit (", Tracer::kMaxEvents,
                                    " do): ask for fewer iterations"));
    }
  }
  v1::TracePart part;
  *part.mutable_events()->mutable_events() = piece.events();
  actions.parts.push_back(std::move(part));
  from_ += events;
  if (from_ == piece.total()) {
    node.fetched = true;
    ++at_;
    from_ = 0;
  }
  waits_for_operator_ = true;
  return actions;
}

TraceActions TraceRun::on_written(Nanoseconds now) {
  TraceActions actions;
  if (!done_ && !recording_ && waits_for_operator_) fetch(now, actions);
  return actions;
}

TraceActions TraceRun::on_gone(NodeId id, const std::string& reason, Nanoseconds now) {
  TraceActions actions;
  Node* node = find(id);
  if (done_ || node == nullptr || !node->gone.empty()) return actions;
  node->gone = reason;
  if (!recording_ && !waits_for_operator_ && collecting() && &nodes_[at_] == node) {
    fetch(now, actions);  // names it and continues with the next one
  }
  return actions;
}

void TraceRun::finish(TraceActions& actions) {
  TraceActions discards = cancel();
  for (auto& send : discards.sends) actions.sends.push_back(std::move(send));
  v1::TracePart part;
  for (std::string& note : notes_) part.mutable_tail()->add_notes(std::move(note));
  part.mutable_tail();
  actions.parts.push_back(std::move(part));
  actions.done = true;
}

TraceActions TraceRun::cancel() {
  TraceActions actions;
  if (std::exchange(done_, true)) return actions;
  for (const Node& node : nodes_) {
    if (node.fetched || !node.gone.empty()) continue;
    v1::CoordinatorMessage message;
    message.mutable_fetch_trace()->set_trace(number_);
    message.mutable_fetch_trace()->set_discard(true);
    actions.sends.emplace_back(node.member.id, std::move(message));
  }
  return actions;
}

}  // namespace poseidon
