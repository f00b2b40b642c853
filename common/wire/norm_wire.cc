#include "common/wire/norm_wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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
    return absl::InvalidArgumentError(
        absl::StrCat("a sum of squares of ", value, "; it must be finite and at least 0"));
  }
  return values;
}

std::vector<TensorSquares> squares_from(const std::vector<double>& values, std::size_t first) {
  std::vector<TensorSquares> squares;
  for (std::size_t i = first; i + 1 < values.size(); i += 2) {
    squares.push_back({.gradient = values[i], .parameters = values[i + 1]});
  }
  return squares;
}

}  // namespace

bool hears_norms(const Plan& plan, WorkerRank rank) {
  if (plan.norm_scope == NormScope::kNone) return false;
  if (rank == WorkerRank(0)) return true;
  return plan.norm_scope == NormScope::kNetwork &&
         std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const PlanLayer& layer) { return layer.scheme == Scheme::kSfb; });
}

std::size_t norms_bytes(std::size_t parts) { return parts * 2 * sizeof(double); }
std::size_t totals_bytes(std::size_t parts) { return sizeof(double) + norms_bytes(parts); }

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
  return out + encode_norms(totals.tensors);
}

absl::StatusOr<std::vector<TensorSquares>> decode_norms(const Bytes& payload) {
  POSEIDON_ASSIGN_OR_RETURN(const std::vector<double> values, decode(payload));
  return squares_from(values, 0);
}

absl::StatusOr<StepTotals> decode_totals(const Bytes& payload) {
  POSEIDON_ASSIGN_OR_RETURN(const std::vector<double> values, decode(payload));
  POSEIDON_CHECK(!values.empty(), "a payload of the size that was checked");
  return StepTotals{.all_gradients = values[0], .tensors = squares_from(values, 1)};
}

}  // namespace poseidon
