#include "tests/sim/protocol_checks.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_io.h"
#include "nlohmann/json.hpp"

namespace poseidon::sim {
namespace {

constexpr std::uint64_t kMaxModelBytes = 1 << 24;

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::string check_piece(const CheckpointPiece& piece, const StoredChunk& stored,
                        const Course::Version& version) {
  if (!piece.layer) {
    return same(stored.parameters, version.statistics) ? "" : "holds other running statistics";
  }
  const std::size_t layer = piece.layer->value();
  const auto part = [&](const std::vector<float>& whole) -> std::span<const float> {
    if (whole.empty()) return {};
    return std::span(whole).subspan(static_cast<std::size_t>(piece.offset),
                                    static_cast<std::size_t>(piece.elements));
  };
  const NetworkState& state = version.state;
  if (!same(stored.parameters, part(state.parameters[layer]))) return "holds other parameters";
  if (!same(stored.state0, part(state.state0[layer])) ||
      !same(stored.state1, part(state.state1[layer]))) {
    return "holds another optimizer state";
  }
  return "";
}

}  // namespace

std::string check_checkpoint(const CheckpointManifest& manifest, const Truth& truth,
                             const DiskOf& disk_of) {
  const std::string name = absl::StrCat("committed checkpoint ", snapshot_name(manifest.snapshot));
  const std::shared_ptr<const Course> course = truth.of(snapshot_epoch(manifest.snapshot));
  if (course == nullptr) return absl::StrCat(name, " is of no epoch that was");
  const Course::Version& version = course->at(manifest.iteration());
  if (manifest.samples != version.samples) {
    return absl::StrCat(name, " speaks of ", manifest.samples, " samples, not ", version.samples);
  }
  for (std::uint32_t i = 0; i < manifest.pieces.size(); ++i) {
    const CheckpointPiece& piece = manifest.pieces[i];
    std::vector<ServerIndex> holders = {piece.holder};
    if (piece.second) holders.push_back(*piece.second);
    for (const ServerIndex holder : holders) {
      const SimDisk* const disk = disk_of(manifest.stores[holder.value()]);
      if (disk == nullptr) continue;
      const auto sealed = disk->sealed.find(manifest.snapshot);
      const bool here = sealed != disk->sealed.end() && sealed->second.contains(PieceId(i));
      const std::string wrong =
          here ? check_piece(piece, sealed->second.at(PieceId(i)), version) : "is missing";
      if (!wrong.empty()) {
        return absl::StrCat(name, ": piece ", i, " on server ", holder.value(), " ", wrong);
      }
    }
  }
  return "";
}

std::string check_metrics(const std::string& metrics, const Course& course, const JobSpec& job,
                          const std::set<Iteration>& missing_lines) {
  std::istringstream in(metrics);
  std::string line;
  Iteration next = 0, last_test = 0;
  std::vector<Iteration> tests;
  while (std::getline(in, line)) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("iteration")) return absl::StrCat("metrics: ", line);
    const auto iteration = json["iteration"].get<Iteration>();
    if (json.contains("loss")) {
      while (next < iteration && missing_lines.contains(next)) ++next;
      if (iteration != next) {
        return absl::StrCat("metrics: iteration ", iteration, " where ", next, " comes next");
      }
      if (json["loss"].get<double>() != course.loss(iteration)) {
        return absl::StrCat("metrics: ", line, ", but the loss is ", course.loss(iteration));
      }
      ++next;
      continue;
    }
    if (iteration <= last_test && !tests.empty()) {
      return absl::StrCat("metrics: test of ", iteration, " after that of ", last_test);
    }
    if (json["test_loss"].get<double>() != course.test_loss(iteration)) {
      return absl::StrCat("metrics: ", line, ", but the loss is ", course.test_loss(iteration));
    }
    last_test = iteration;
    tests.push_back(iteration);
  }
  if (next != job.iterations) {
    return absl::StrCat("metrics: ", next, " of ", job.iterations, " iterations");
  }
  std::vector<Iteration> due;
  for (Iteration i = 1; job.data.test && i <= job.iterations; ++i) {
    const bool periodic = job.test_every_iterations > 0 && i % job.test_every_iterations == 0;
    const bool is_told = std::ranges::find(tests, i) != tests.end();
    if (!is_told && missing_lines.contains(i)) continue;
    if (periodic || i == job.iterations) due.push_back(i);
  }
  if (tests != due) return absl::StrCat("metrics: ", tests.size(), " of ", due.size(), " tests");
  return "";
}

std::string check_model(const std::filesystem::path& model, const Course& course,
                        const JobSpec& job) {
  const absl::StatusOr<std::string> bytes = read_file(model, kMaxModelBytes);
  if (!bytes.ok()) return absl::StrCat("the model: ", bytes.status().message());
  const Course::Version& end = course.at(job.iterations);
  const std::vector<std::span<const float>> layers(end.state.parameters.begin(),
                                                   end.state.parameters.end());
  return *bytes == encode_model(job, layers, end.statistics) ? "" : "the model is another one";
}

}  // namespace poseidon::sim
