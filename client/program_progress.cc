#include "client/program_progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

using Reply = ProgramProgress::Reply;
using Verdict = ProgramProgress::Verdict;

/// Names of layers in one message; hundreds do not tell more.
constexpr std::size_t kMaxNamesInReply = 4;

Reply invalid(std::string message) { return {Verdict::kInvalid, std::move(message)}; }

/// The layers whose flag is not set: "fc1, fc2 and 3 more".
std::string names_without(const std::vector<std::string>& names, const std::vector<bool>& flags) {
  std::string text;
  std::size_t missing = 0;
  for (std::size_t l = 0; l < names.size(); ++l) {
    if (flags[l]) continue;
    if (++missing <= kMaxNamesInReply) {
      absl::StrAppend(&text, missing == 1 ? "" : ", ", names[l]);
    }
  }
  if (missing > kMaxNamesInReply) {
    absl::StrAppend(&text, " and ", missing - kMaxNamesInReply, " more");
  }
  return text;
}

}  // namespace

ProgramProgress::ProgramProgress(std::vector<std::string> layers, bool gives_rates)
    : names_(std::move(layers)),
      gives_rates_(gives_rates),
      reported_(names_.size()),
      told_(names_.size()),
      landed_(names_.size()) {
  POSEIDON_CHECK(!names_.empty(), "a declared model has a layer");
}

bool ProgramProgress::all(const std::vector<bool>& flags) const {
  return std::ranges::all_of(flags, [](bool flag) { return flag; });
}

// ---- the program's calls ----

Reply ProgramProgress::join() {
  if (is_ended_) return {Verdict::kEnded, ""};
  if (has_joined_) return invalid("poseidon_join: this program has joined already");
  if (phase_ != Phase::kRunning) return {Verdict::kWait, ""};
  has_joined_ = true;
  told_.assign(names_.size(), true);
  return {};
}

Reply ProgramProgress::enter(const char* call) {
  if (is_ended_) return {Verdict::kEnded, ""};
  if (!has_joined_) return invalid(absl::StrCat(call, ": call poseidon_join first"));
  if (!is_rewound_) return {};
  if (phase_ != Phase::kRunning) return {Verdict::kWait, ""};
  is_rewound_ = false;
  told_.assign(names_.size(), true);
  return {Verdict::kRewound, ""};
}

Reply ProgramProgress::gradient(std::size_t layer) {
  if (Reply reply = enter("poseidon_gradient"); reply.verdict != Verdict::kOk) return reply;
  if (layer >= names_.size()) {
    return invalid(absl::StrCat("poseidon_gradient: layer ", layer, " of a model with ",
                                names_.size(), " layers"));
  }
  if (is_finishing_) {
    return invalid(absl::StrCat("poseidon_gradient: layer ", names_[layer],
                                " after poseidon_finish: the job has no further iteration"));
  }
  if (reported_[layer]) {
    return invalid(absl::StrCat("poseidon_gradient: layer ", names_[layer],
                                " is reported twice in iteration ", iteration_));
  }
  if (!all(told_)) {
    return invalid(absl::StrCat(
        "poseidon_gradient: layer ", names_[layer], ": gradients of iteration ", iteration_,
        " may be written once all parameters are there, and the program has not waited for ",
        names_without(names_, told_), ": call poseidon_wait_all before gradients are written"));
  }
  reported_[layer] = true;
  reports_.push_back(layer);
  return {};
}

Reply ProgramProgress::enter_behind_gradients(const char* call) {
  if (Reply reply = enter(call); reply.verdict != Verdict::kOk) return reply;
  if (is_finishing_) {
    return invalid(absl::StrCat(call, " after poseidon_finish: the job has no further iteration"));
  }
  if (all(reported_)) return {};
  return invalid(absl::StrCat(call, ": iteration ", iteration_, " lacks the gradient of ",
                              names_without(names_, reported_),
                              ": report zeros for a layer that was not used"));
}

Reply ProgramProgress::norm() {
  if (Reply reply = enter_behind_gradients("poseidon_gradient_norm");
      reply.verdict != Verdict::kOk) {
    return reply;
  }
  if (!gives_rates_) {
    return invalid(
        "poseidon_gradient_norm: the norm is told in jobs whose \"optimizer\" has \"rates\": "
        "\"program\" alone");
  }
  if (norm_of_ == iteration_) return {};
  awaits_norm_ = true;
  return {Verdict::kWait, ""};
}

Reply ProgramProgress::rates() {
  if (Reply reply = enter("poseidon_rates"); reply.verdict != Verdict::kOk) return reply;
  if (is_finishing_) {
    return invalid("poseidon_rates after poseidon_finish: the job has no further iteration");
  }
  if (!gives_rates_) {
    return invalid(
        "poseidon_rates: the job has rates of its own; write \"rates\": \"program\" into its "
        "\"optimizer\"");
  }
  if (has_rates_) {
    return invalid(
        absl::StrCat("poseidon_rates: iteration ", iteration_, " has its rates already"));
  }
  if (!reports_.empty() && !all(reported_)) {
    return invalid(absl::StrCat("poseidon_rates: iteration ", iteration_, " has gradients of ",
                                reports_.size(), " of ", names_.size(),
                                " layers: give the rates before the first or behind the last"));
  }
  has_rates_ = true;
  is_ahead_ = reports_.empty();
  return {};
}

Reply ProgramProgress::step(double loss) {
  if (Reply reply = enter_behind_gradients("poseidon_step"); reply.verdict != Verdict::kOk) {
    return reply;
  }
  if (gives_rates_ && !has_rates_) {
    return invalid(absl::StrCat("poseidon_step: iteration ", iteration_,
                                " has no rates: call poseidon_rates first"));
  }
  last_ = std::move(reports_);
  last_loss_ = loss;
  has_last_ = true;
  was_ahead_ = std::exchange(is_ahead_, false);
  has_rates_ = awaits_norm_ = false;
  ++iteration_;
  reports_.clear();
  reported_.assign(names_.size(), false);
  told_.assign(names_.size(), false);
  landed_.assign(names_.size(), false);
  return {};
}

Reply ProgramProgress::wait(std::size_t layer) {
  if (Reply reply = enter("poseidon_wait"); reply.verdict != Verdict::kOk) return reply;
  if (layer >= names_.size()) {
    return invalid(absl::StrCat("poseidon_wait: layer ", layer, " of a model with ", names_.size(),
                                " layers"));
  }
  if (!landed_[layer]) return {Verdict::kWait, ""};
  told_[layer] = true;
  has_last_ = false;  // the program reads parameters of i, which older ones would overwrite
  return {};
}

Reply ProgramProgress::finish() {
  if (is_done_ && is_finishing_) return {};
  if (Reply reply = enter("poseidon_finish"); reply.verdict != Verdict::kOk) return reply;
  if (!reports_.empty()) {
    return invalid(absl::StrCat("poseidon_finish: iteration ", iteration_, " has gradients of ",
                                reports_.size(), " of ", names_.size(),
                                " layers and is not ended: call poseidon_step first"));
  }
  is_finishing_ = true;
  return {Verdict::kWait, ""};
}

// ---- the epochs ----

bool ProgramProgress::is_silent(const EpochPlace& place) const {
  if (is_rewound_ || place.rank != place_.rank || place.workers != place_.workers) return false;
  return place.first_iteration == iteration_ ||
         (place.first_iteration == iteration_ - 1 && has_last_);
}

void ProgramProgress::rewind(Iteration first) {
  iteration_ = first;
  reports_.clear();
  reported_.assign(names_.size(), false);
  told_.assign(names_.size(), false);
  landed_.assign(names_.size(), false);
  has_last_ = false;
  has_rates_ = is_ahead_ = awaits_norm_ = false;
  norm_of_ = -1;
  is_finishing_ = false;
  is_rewound_ = has_joined_;
}

void ProgramProgress::prepare(const EpochPlace& place) {
  const Iteration first = place.first_iteration;
  if (!has_joined_ || !is_silent(place)) {
    rewind(first);
  } else if (first != iteration_) {
    landed_.assign(names_.size(), false);
  }
  place_ = place;
  working_ = first;
  given_ = 0;
  rates_given_ = false;
  is_finish_given_ = false;
  phase_ = Phase::kPrepared;
}

void ProgramProgress::begin() {
  POSEIDON_CHECK(phase_ == Phase::kPrepared, "an epoch is prepared before it begins");
  phase_ = Phase::kRunning;
  // The program may have ended a step since the epoch was prepared.
  if (working_ == iteration_) landed_.assign(names_.size(), true);
}

ProgramProgress::Action ProgramProgress::next() {
  using Kind = Action::Kind;
  if (phase_ != Phase::kRunning) return {};
  if (working_ == iteration_) {
    for (std::size_t l = 0; l < names_.size(); ++l) {
      if (!landed_[l]) return {.kind = Kind::kAwait, .layer = l, .iteration = iteration_};
    }
  }
  const bool is_last = working_ != iteration_;
  const bool has_rates = gives_rates_ && !rates_given_ && (has_rates_ || is_last);
  if (has_rates && (is_last ? was_ahead_ : is_ahead_)) {
    rates_given_ = true;
    return {.kind = Kind::kRates, .iteration = working_};
  }
  const std::vector<std::size_t>& reports = is_last ? last_ : reports_;
  if (given_ < reports.size()) {
    return {.kind = Kind::kGradient, .layer = reports[given_++], .iteration = working_};
  }
  if (given_ == names_.size() && !is_last && awaits_norm_ && norm_of_ != iteration_) {
    return {.kind = Kind::kNorm, .iteration = iteration_};
  }
  if (given_ == names_.size() && has_rates) {
    rates_given_ = true;
    return {.kind = Kind::kRates, .iteration = working_};
  }
  if (is_last) {
    POSEIDON_CHECK(working_ + 1 == iteration_, "a program is one step ahead at most");
    given_ = 0;
    rates_given_ = false;
    return {.kind = Kind::kStep, .iteration = working_++, .loss = last_loss_};
  }
  if (!is_finishing_ || is_finish_given_) return {};
  is_finish_given_ = true;
  return {.kind = Kind::kFinish, .iteration = iteration_};
}

void ProgramProgress::landed(std::size_t layer) {
  if (phase_ == Phase::kRunning && working_ == iteration_) landed_[layer] = true;
}

void ProgramProgress::norm_known(Iteration iteration) {
  if (phase_ == Phase::kRunning && iteration == iteration_) norm_of_ = iteration;
}

void ProgramProgress::over() { phase_ = Phase::kNoEpoch; }

void ProgramProgress::end(bool done) {
  phase_ = Phase::kNoEpoch;
  is_done_ = is_done_ || (done && !is_ended_);
  is_ended_ = true;
}

}  // namespace poseidon
