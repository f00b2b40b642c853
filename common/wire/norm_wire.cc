#include "common/wire/norm_wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

void append(std::string& out, double value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);  // little endian, like every machine we run on
  out.append(bytes, sizeof bytes);
}

absl::StatusOr<std::vector<double>> decode(const Bytes& payload) {
  std::string flat;
  for (const auto& piece : payload.pieces) {
    flat.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  POSEIDON_CHECK(flat.size() % sizeof(double) == 0, "a payload of the size that was checked");
  std::vector<double> values(flat.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), flat.data(), flat.size());
  for (const double value : values) {
    if (std::isfinite(value) && value >= 0.0) continue;
    return absl::InvalidArgumentError(absl::StrCat("a sum of squares or a rate of ", value,
                                                   "; it must be finite and at least 0"));
  }
  return values;
}

std::vector<TensorSquares> squares_from(std::span<const double> values) {
  std::vector<TensorSquares> squares;
  for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
    squares.push_back({.gradient = values[i], .parameters = values[i + 1]});
  }
  return squares;
}

}  // namespace

bool hears_norms(const Plan& plan, WorkerRank rank) {
  if (plan.norm_scope == NormScope::kNone) return false;
  if (rank == WorkerRank(0) || plan.norm_scope == NormScope::kProgram) return true;
  return plan.norm_scope == NormScope::kNetwork &&
         std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const PlanLayer& layer) { return layer.scheme == Scheme::kSfb; });
}

std::size_t norms_bytes(std::size_t parts) { return parts * 2 * sizeof(double); }
std::size_t totals_bytes(std::size_t parts, NormScope scope) {
  const std::size_t rates =
      scope == NormScope::kProgram ? sizeof(double) + parts * 2 * sizeof(double) : 0;
  return sizeof(double) + norms_bytes(parts) + rates;
}

std::string encode_norms(const std::vector<TensorSquares>& parts) {
  std::string out;
  for (const TensorSquares& part : parts) {
    append(out, part.gradient);
    append(out, part.parameters);
  }
  return out;
}

std::string encode_totals(const StepTotals& totals) {
  std::string out;
  append(out, totals.all_gradients);
  out += encode_norms(totals.tensors);
  if (totals.rates.empty()) return out;
  POSEIDON_CHECK(totals.rates.size() == totals.tensors.size(), "rates of each part");
  append(out, totals.gradient_scale);
  for (const StepRates& rates : totals.rates) {
    append(out, rates.learning_rate);
    append(out, rates.weight_decay);
  }
  return out;
}

absl::StatusOr<std::vector<TensorSquares>> decode_norms(const Bytes& payload) {
  POSEIDON_ASSIGN_OR_RETURN(const std::vector<double> values, decode(payload));
  return squares_from(values);
}

absl::StatusOr<StepTotals> decode_totals(const Bytes& payload, NormScope scope) {
  POSEIDON_ASSIGN_OR_RETURN(const std::vector<double> decoded, decode(payload));
  POSEIDON_CHECK(!decoded.empty(), "a payload of the size that was checked");
  const std::span<const double> values = std::span(decoded).subspan(1);
  StepTotals totals{.all_gradients = decoded[0], .tensors = {}, .gradient_scale = 1.0, .rates = {}};
  if (scope != NormScope::kProgram) {
    totals.tensors = squares_from(values);
    return totals;
  }
  POSEIDON_CHECK(values.size() % 4 == 1, "a payload of the size that was checked");
  const std::size_t squares = values.size() / 2;  // as many numbers as rates have, and the scale
  totals.tensors = squares_from(values.first(squares));
  totals.gradient_scale = values[squares];
  for (std::size_t i = squares + 1; i + 1 < values.size(); i += 2) {
    totals.rates.push_back({.learning_rate = values[i], .weight_decay = values[i + 1]});
    if (is_rate(values[i]) && is_rate(values[i + 1])) continue;
    return absl::InvalidArgumentError(absl::StrCat("a learning rate of ", values[i],
                                                   " and a weight decay of ", values[i + 1],
                                                   ", which float32 cannot hold"));
  }
  return totals;
}

}  // namespace poseidon
