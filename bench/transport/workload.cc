#include "bench/transport/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/planning/planner.h"

namespace poseidon::bench {
namespace {

/// Sizes of the layers in forward order, in 64ths of the whole: whole elements from 1 MiB on.
constexpr std::array kShares = {1, 1, 2, 2, 4, 4, 6, 8, 24, 8, 4};
constexpr std::int64_t kWhole = 64;

/// Rank 0's gradient where no iteration changes it. Small whole numbers, so that sums are exact;
/// 61 is prime, so that chunks of any usual size begin differently.
double pattern(std::size_t element) { return 1.0 + static_cast<double>(element % 61); }

/// The places of a chunk that prepare() changes: both ends and the middle.
std::array<std::size_t, 3> changing_places(const ChunkPlace& chunk) {
  return {chunk.begin, chunk.begin + chunk.elements / 2, chunk.begin + chunk.elements - 1};
}

std::size_t total_elements(const std::vector<ChunkPlace>& chunks) {
  return chunks.back().begin + chunks.back().elements;  // they are in order, without gaps
}

}  // namespace

absl::StatusOr<Plan> plan_for(const Shape& shape, std::vector<std::string> server_addresses) {
  PlannerInput input;
  input.epoch = Epoch(1);
  input.batch_size = 1;
  input.worker_addresses.assign(shape.workers, "");
  input.server_addresses = std::move(server_addresses);
  input.sync.chunk_bytes = shape.chunk_bytes;
  input.sync.wire_dtype = shape.wire_type;
  const std::int64_t elements = (shape.mib << 20) / static_cast<std::int64_t>(sizeof(float));
  for (std::size_t l = 0; l < kShares.size(); ++l) {
    const std::int64_t parameters = elements / kWhole * kShares[l];
    input.layers.push_back({.name = absl::StrCat("layer", l),
                            .type = "synthetic",
                            .shape = {parameters},
                            .parameters = parameters});
  }
  return make_plan(input);
}

std::vector<ChunkPlace> chunk_places(const Plan& plan) {
  std::vector<ChunkPlace> places;
  std::size_t begin = 0;
  for (const PlanChunk& chunk : plan.chunks) {
    const auto elements = static_cast<std::size_t>(chunk.elements);
    places.push_back({.begin = begin, .elements = elements, .server = chunk.server});
    begin += elements;
  }
  return places;
}

Workload::Workload(const Plan& plan, WorkerRank rank)
    : workers_(plan.workers()),
      wire_type_(plan.wire_type),
      rank_(rank),
      chunks_(chunk_places(plan)),
      gradients_(FloatBuffer::sendable(static_cast<std::int64_t>(total_elements(chunks_)))),
      results_(static_cast<std::int64_t>(total_elements(chunks_))) {
  const std::span<float> gradients = gradients_.floats();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = static_cast<float>((rank_.value() + 1) * pattern(i));
  }
}

void Workload::prepare(Iteration iteration) {
  const std::span<float> gradients = gradients_.floats();
  const double factor = static_cast<double>(rank_.value() + 1) * static_cast<double>(iteration + 1);
  for (const ChunkPlace& chunk : chunks_) {
    for (const std::size_t i : changing_places(chunk)) {
      gradients[i] = static_cast<float>(factor * pattern(i));
    }
  }
}

absl::Status Workload::check(Answer answer, Iteration iteration) const {
  const std::span<const float> results = results_.floats();
  const double workers = workers_;
  const double n = static_cast<double>(iteration + 1);
  // Exact for 1, 2 and 4 workers; a third of a sum is rounded. In 16 bits gradients and parameters
  // are rounded once each, by at most 2^-8 (all of one sign, so sums are not off by more).
  const bool rounds = answer == Answer::kParameters && wire_type_ != ElementType::kFloat32;
  const double tolerance = rounds ? 0x1p-7 + 0x1p-16 : 1e-5;
  const auto check_one = [&](std::size_t chunk, std::size_t i, bool changing) -> absl::Status {
    double expected = pattern(i) * workers * (workers + 1) / 2;  // the sum over ranks
    if (answer == Answer::kSum) {
      if (changing) expected *= n;
    } else {
      expected *= -1.0 / workers * (changing ? n * (n + 1) / 2 : n);
    }
    if (std::abs(results[i] - expected) <= tolerance * std::abs(expected)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("worker ", rank_.value(), ", iteration ", iteration,
                                            ", chunk ", chunk, ", element ", i, ": got ",
                                            results[i], ", expected ", expected));
  };
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const auto changing = changing_places(chunks_[c]);
    for (const std::size_t i : changing) {
      if (absl::Status status = check_one(c, i, true); !status.ok()) return status;
    }
    const std::size_t constant = chunks_[c].begin + 1;
    if (chunks_[c].elements < 2 || std::ranges::count(changing, constant) > 0) continue;
    if (absl::Status status = check_one(c, constant, false); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace poseidon::bench
