#include "common/wire/snapshot.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {

SnapshotId snapshot_id(Epoch epoch, Iteration iteration) {
  POSEIDON_CHECK(iteration >= 0 && iteration < (Iteration{1} << kSnapshotIterationBits) &&
                     epoch.value() < kEpochs,
                 "epoch and iteration fit into a snapshot's number");
  return SnapshotId((epoch.value() << kSnapshotIterationBits) |
                    static_cast<std::uint64_t>(iteration));
}

Epoch snapshot_epoch(SnapshotId id) { return Epoch(id.value() >> kSnapshotIterationBits); }

Iteration snapshot_iteration(SnapshotId id) {
  return static_cast<Iteration>(id.value() & ((std::uint64_t{1} << kSnapshotIterationBits) - 1));
}

std::string snapshot_name(SnapshotId id) {
  return absl::StrCat(snapshot_epoch(id).value(), "-", snapshot_iteration(id));
}

std::optional<SnapshotId> parse_snapshot_name(std::string_view name) {
  const std::size_t dash = name.find('-');
  std::uint64_t epoch = 0;
  std::int64_t iteration = 0;
  if (dash == std::string_view::npos ||
      !absl::SimpleAtoi(std::string(name.substr(0, dash)), &epoch) ||
      !absl::SimpleAtoi(std::string(name.substr(dash + 1)), &iteration) || epoch == 0 ||
      epoch >= kEpochs || iteration < 0 || iteration >= (Iteration{1} << kSnapshotIterationBits)) {
    return std::nullopt;
  }
  const SnapshotId id = snapshot_id(Epoch(epoch), iteration);
  if (snapshot_name(id) != name) return std::nullopt;
  return id;
}

}  // namespace poseidon
