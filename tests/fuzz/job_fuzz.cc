// A job file; one that is taken says the same when it is written and read again.

#include "common/base/check.h"
#include "common/job/job.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  auto job = parse_job(fuzz::Input(data, size).rest());
  if (!job.ok()) return 0;
  (void)job_warnings(*job);
  const std::string text = job_to_json(*job);
  const auto again = parse_job(text);
  POSEIDON_CHECK(again.ok(), "what was written is read");
  POSEIDON_CHECK(job_to_json(*again) == text, "a job stays a job");
  resolve_paths(*job, "/jobs");
  return 0;
}
