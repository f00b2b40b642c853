// The smaller texts that are read: a pinned plan, a checkpoint's manifest, the job in progress,
// metrics.jsonl, a daemon's configuration, and two statuses whose counters the doctor compares. The
// first byte chooses.

#include <algorithm>
#include <memory>
#include <sstream>

#include "CLI/CLI.hpp"
#include "cli/doctor/doctor_counters.h"
#include "cli/doctor/doctor_diagnose.h"
#include "cli/doctor/doctor_format.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "common/daemon/command_line.h"
#include "common/files/json_fields.h"
#include "common/plan/plan_pin.h"
#include "coordinator/records/durable_job.h"
#include "coordinator/records/run_directory.h"
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

/// Two statuses, one behind the other: the first byte says where the second begins, in parts of
/// 256.
void counters(std::string_view text) {
  if (text.empty()) return;
  const std::size_t part = static_cast<unsigned char>(text.front());
  text.remove_prefix(1);
  const std::size_t middle = text.size() * part / 256;
  v1::GetStatusResponse before, after;
  if (!before.ParseFromString(std::string(text.substr(0, middle)))) return;
  if (!after.ParseFromString(std::string(text.substr(middle)))) return;
  (void)all_have_reported(after, before);
  DoctorFacts facts;
  facts.iteration_s = 0.1;
  facts.iterations = 10;
  facts.workers.push_back({.node = {.name = "worker 0"}, .compute_s = 0.09});
  facts.servers.push_back({.node = {.name = "server 0"}});
  add_counters(before, after, 1.7e9, facts);
  const std::vector<Finding> findings = diagnose(facts);
  POSEIDON_CHECK(!findings.empty(), "something is always said");
  (void)doctor_to_text(facts, findings);
  (void)doctor_to_json(facts, findings).dump();
}

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  fuzz::Input input(data, size);
  switch (input.byte() % 6) {
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
    case 4:
      fuzz::config(input.rest());
      break;
    default:
      fuzz::counters(input.rest());
      break;
  }
  return 0;
}
