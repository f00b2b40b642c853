#include "coordinator/planning/cost/scheme_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"

namespace poseidon {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr double kSameTime = 1e-12;  ///< relative: differences of rounding
constexpr std::size_t kMaxPairLayers = 24;
constexpr std::size_t kPrefixSteps = 16;

Scheme other(Scheme scheme) { return scheme == Scheme::kPs ? Scheme::kSfb : Scheme::kPs; }

struct Candidate {
  std::vector<Scheme> schemes;
  double iteration_s = std::numeric_limits<double>::infinity();
  double busy_s = std::numeric_limits<double>::infinity();
};

bool better(const Candidate& a, const Candidate& b) {
  if (a.iteration_s < b.iteration_s * (1.0 - kSameTime)) return true;
  return a.iteration_s <= b.iteration_s * (1.0 + kSameTime) && a.busy_s < b.busy_s;
}

class Search {
 public:
  Search(const IterationModel& model, std::vector<std::size_t> free, const SearchOptions& options)
      : model_(model),
        free_(std::move(free)),
        plays_left_(std::max<std::int64_t>(
            1, options.work_limit / static_cast<std::int64_t>(model.layers.size() + 64))) {}

  std::int64_t plays() const { return plays_; }
  bool fits(std::int64_t plays) const { return plays <= plays_left_; }
  const Candidate& best() const { return best_; }
  bool try_out(std::vector<Scheme> schemes, double* iteration_s = nullptr);
  void enumerate(std::vector<double>& flipped_s);
  void try_prefixes();
  void flip_singles(std::vector<double>& flipped_s);
  bool flip_a_pair();

 private:
  double relief_per_second(std::size_t layer) const;
  std::vector<Scheme> prefix(std::size_t count) const;

  const IterationModel& model_;
  std::vector<std::size_t> free_;
  std::int64_t plays_left_;
  std::int64_t plays_ = 0;
  Candidate best_;
};

/// Plays; true when it is the best so far.
bool Search::try_out(std::vector<Scheme> schemes, double* iteration_s) {
  Candidate candidate{.schemes = std::move(schemes)};
  candidate.iteration_s = play_iteration(model_, candidate.schemes).iteration_s;
  candidate.busy_s = 0.0;
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    candidate.busy_s += link_busy_s(model_, model_.layers[i], candidate.schemes[i]);
  }
  ++plays_;
  --plays_left_;
  if (iteration_s != nullptr) *iteration_s = candidate.iteration_s;
  if (!better(candidate, best_)) return false;
  best_ = std::move(candidate);
  return true;
}

void Search::enumerate(std::vector<double>& flipped_s) {
  const std::size_t combinations = std::size_t{1} << free_.size();
  std::vector<double> times(combinations, kUnknown);
  std::vector<Scheme> schemes = best_.schemes;
  std::size_t best = 0;
  for (std::size_t mask = 0; mask < combinations; ++mask) {
    for (std::size_t i = 0; i < free_.size(); ++i) {
      schemes[free_[i]] = (mask >> i & 1) != 0 ? Scheme::kSfb : Scheme::kPs;
    }
    try_out(schemes, &times[mask]);
  }
  for (std::size_t i = 0; i < free_.size(); ++i) {
    if (best_.schemes[free_[i]] == Scheme::kSfb) best |= std::size_t{1} << i;
  }
  for (std::size_t i = 0; i < free_.size(); ++i) {
    flipped_s[free_[i]] = times[best ^ std::size_t{1} << i];
  }
}

double Search::relief_per_second(std::size_t layer) const {
  const ModelLayer& costs = model_.layers[layer];
  const double relief_s =
      link_busy_s(model_, costs, Scheme::kPs) - link_busy_s(model_, costs, Scheme::kSfb);
  const double device_s = costs.rebuild_s + costs.sfb_backward_s - costs.backward_s;
  return relief_s / std::max(device_s, 1e-9);
}

std::vector<Scheme> Search::prefix(std::size_t count) const {
  std::vector<Scheme> schemes = best_.schemes;
  for (std::size_t i = 0; i < free_.size(); ++i) {
    schemes[free_[i]] = i < count ? Scheme::kSfb : Scheme::kPs;
  }
  return schemes;
}

void Search::try_prefixes() {
  std::vector<double> keys(model_.layers.size(), 0.0);
  for (const std::size_t layer : free_) keys[layer] = relief_per_second(layer);
  std::stable_sort(free_.begin(), free_.end(),
                   [&](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
  // Ever finer around the best prefix so far.
  std::size_t low = 0, high = free_.size();
  while (true) {
    const std::size_t step = std::max<std::size_t>(1, (high - low) / kPrefixSteps);
    std::size_t best_count = low;
    double best_s = std::numeric_limits<double>::infinity();
    for (std::size_t count = low; count <= high && fits(1); count += step) {
      double iteration_s = 0.0;
      try_out(prefix(count), &iteration_s);
      if (iteration_s < best_s) best_s = iteration_s, best_count = count;
    }
    if (step == 1 || !fits(1)) return;
    low = best_count > step ? best_count - step : 0;
    high = std::min(best_count + step, free_.size());
  }
}

void Search::flip_singles(std::vector<double>& flipped_s) {
  std::size_t unimproved = 0;
  for (std::size_t at = 0; unimproved < free_.size() && fits(1); at = (at + 1) % free_.size()) {
    const std::size_t layer = free_[at];
    const double before_s = best_.iteration_s;
    std::vector<Scheme> schemes = best_.schemes;
    schemes[layer] = other(schemes[layer]);
    double iteration_s = 0.0;
    if (try_out(std::move(schemes), &iteration_s)) {
      // Times of the others belong to the choice before.
      std::fill(flipped_s.begin(), flipped_s.end(), kUnknown);
      flipped_s[layer] = before_s;
      unimproved = 1;
    } else {
      flipped_s[layer] = iteration_s;
      ++unimproved;
    }
  }
}

bool Search::flip_a_pair() {
  for (std::size_t a = 0; a < free_.size(); ++a) {
    for (std::size_t b = a + 1; b < free_.size(); ++b) {
      if (!fits(1)) return false;
      std::vector<Scheme> schemes = best_.schemes;
      schemes[free_[a]] = other(schemes[free_[a]]);
      schemes[free_[b]] = other(schemes[free_[b]]);
      if (try_out(std::move(schemes))) return true;
    }
  }
  return false;
}

}  // namespace

SearchResult search_schemes(const IterationModel& model,
                            const std::vector<std::vector<Scheme>>& starts,
                            const std::vector<std::size_t>& free, const SearchOptions& options) {
  POSEIDON_CHECK(!starts.empty(), "a search begins somewhere");
  SearchResult result;
  result.flipped_s.assign(model.layers.size(), kUnknown);
  Search search(model, free, options);
  for (const std::vector<Scheme>& start : starts) search.try_out(start);
  result.exact = free.size() <= options.exact_limit && search.fits(std::int64_t{1} << free.size());
  if (result.exact) {
    search.enumerate(result.flipped_s);
  } else {
    search.try_prefixes();
    do {
      search.flip_singles(result.flipped_s);
    } while (free.size() <= kMaxPairLayers && search.flip_a_pair());
  }
  result.schemes = search.best().schemes;
  result.iteration_s = search.best().iteration_s;
  result.plays = search.plays();
  return result;
}

}  // namespace poseidon
