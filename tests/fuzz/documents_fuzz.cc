// The smaller JSON files that are read back: a pinned plan, a checkpoint's manifest, the job in
// progress, metrics.jsonl, a daemon's configuration. The first byte chooses.

#include <memory>
#include <sstream>

#include "CLI/CLI.hpp"
#include "common/check.h"
#include "common/checkpoint.h"
#include "common/config_file.h"
#include "common/json_fields.h"
#include "common/plan_pin.h"
#include "coordinator/durable_job.h"
#include "coordinator/run_directory.h"
#include "tests/fuzz/input.h"

namespace poseidon::fuzz {
namespace {

void pinned_plan(std::string_view text) {
  const auto json = parse_json(text, "plan");
  if (!json.ok()) return;
  const auto pin = plan_pin_from_json(*json, "plan");
  if (!pin.ok()) return;
  const auto again = plan_pin_from_json(plan_pin_to_json(*pin), "plan");
  POSEIDON_CHECK(again.ok() && plan_pin_to_json(*again) == plan_pin_to_json(*pin), "it stays");
}

void manifest(std::string_view text) {
  const auto manifest = manifest_from_json(text, "manifest");
  if (!manifest.ok()) return;
  const std::string written = manifest_to_json(*manifest);
  const auto again = manifest_from_json(written, "manifest");
  POSEIDON_CHECK(again.ok() && manifest_to_json(*again) == written, "it stays");
  (void)stores_in_use(*manifest);
  (void)PieceIndex(manifest->pieces).covering(LayerIndex(0), 0, 16);
}

void durable_job(std::string_view text) {
  if (const auto outcome = outcome_from_json(text); outcome.ok()) {
    const auto written = outcome_to_json(*outcome);
    POSEIDON_CHECK(written.ok() && outcome_from_json(*written).ok(), "it stays");
  }
  const auto job = durable_job_from_json(text);
  if (!job.ok()) return;
  const std::string written = durable_job_to_json(*job);
  const auto again = durable_job_from_json(written);
  POSEIDON_CHECK(again.ok() && durable_job_to_json(*again) == written, "it stays");
}

void metrics_lines(std::string_view text) {
  std::istringstream in{std::string(text)};
  const MetricsProgress progress = read_metrics_progress(in);
  POSEIDON_CHECK(progress.bytes <= text.size(), "no more than there is");
  POSEIDON_CHECK(metrics_before(text, 5).size() <= text.size(), "likewise");
}

void config(std::string_view text) {
  CLI::App app("a daemon", "poseidon-fuzz");
  std::string listen;
  bool flag = false;
  app.add_option("--listen", listen, "");
  app.add_flag("--no-shared-memory", flag, "");
  add_config_option(app);
  std::istringstream in{std::string(text)};
  try {  // CLI11's error channel
    (void)app.get_config_formatter()->from_config(in);
  } catch (const CLI::Error&) {
  }
}

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  fuzz::Input input(data, size);
  switch (input.byte() % 5) {
    case 0:
      fuzz::pinned_plan(input.rest());
      break;
    case 1:
      fuzz::manifest(input.rest());
      break;
    case 2:
      fuzz::durable_job(input.rest());
      break;
    case 3:
      fuzz::metrics_lines(input.rest());
      break;
    default:
      fuzz::config(input.rest());
      break;
  }
  return 0;
}
