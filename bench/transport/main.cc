// poseidon-bench-transport: measures the speed and cost of moving gradients by several variants.
//
// Reads the options, runs every variant once per round, prints and writes the medians. Each server
// and worker is this program again, with --role (role.h).

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/transport/cluster.h"
#include "bench/transport/report.h"
#include "bench/transport/role.h"
#include "bench/transport/variant.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/files/file_io.h"
#include "common/wire/wire.h"

namespace poseidon::bench {
namespace {

struct Options {
  std::vector<std::string> variants;
  Shape shape;
  std::string wire_dtype = "fp32";
  std::int64_t iterations = 5;
  std::int64_t rounds = 5;
  std::int64_t step_timeout_s = 300;
  bool sweep = false;
  std::string json;
  // Of our own processes only.
  std::string role;
  int control = -1;
};

void add_options(CLI::App& app, Options& options) {
  for (const Variant& variant : all_variants()) options.variants.emplace_back(variant.name);
  app.add_option("--variants", options.variants, "which, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(options.variants))
      ->capture_default_str();
  auto* workers = app.add_option("--workers", options.shape.workers, "worker processes");
  workers->check(CLI::Range(1, 64))->capture_default_str();
  auto* servers = app.add_option("--servers", options.shape.servers, "server processes");
  servers->check(CLI::Range(1, 64))->capture_default_str();
  auto* chunk_bytes = app.add_option("--chunk-bytes", options.shape.chunk_bytes,
                                     "largest chunk (chunks never span layers)");
  chunk_bytes->check(CLI::Range(std::int64_t{4096}, kMaxChunkBytes))->capture_default_str();
  app.add_option("--wire-dtype", options.wire_dtype,
                 "what sockets and shared-memory send; raw and naive send fp32 always")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--mib", options.shape.mib, "MiB of float32 per worker and iteration")
      ->check(CLI::Range(1, 16384))
      ->capture_default_str();
  app.add_option("--iterations", options.iterations, "measured iterations per round")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds; every variant runs once in each")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--step-timeout-s", options.step_timeout_s,
                 "longest wait for the processes to start, connect or run all iterations")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_flag("--sweep", options.sweep,
               "1, 2, 4 workers by 1, 2, 4 servers, and chunks of 64 KiB to 8 MiB with 1 by 1")
      ->excludes(workers)
      ->excludes(servers)
      ->excludes(chunk_bytes);
  app.add_option("--json", options.json, "write the figures to this file");
  app.add_option("--role", options.role)->group("");  // an empty group is not shown
  app.add_option("--control", options.control)->group("");
  app.footer(
      "GB/s and CPU s/GB count float32 tensors in both directions over all workers; see "
      "bench/README.md.\n"
      "Exit codes: 0 done, 1 a run failed, 2 the call is wrong.\n\n"
      "Examples:\n  poseidon-bench-transport --workers 2 --servers 2\n"
      "  poseidon-bench-transport --variants raw,sockets --rounds 9 --json out.json\n"
      "  poseidon-bench-transport --sweep --json sweep.json");
}

std::vector<Shape> shapes(const Options& options) {
  if (!options.sweep) return {options.shape};
  std::vector<Shape> all;
  const auto add = [&](std::uint32_t workers, std::uint32_t servers, std::int64_t chunk_bytes) {
    all.push_back({.workers = workers,
                   .servers = servers,
                   .mib = options.shape.mib,
                   .chunk_bytes = chunk_bytes,
                   .wire_type = options.shape.wire_type});
  };
  for (const std::uint32_t workers : {1, 2, 4}) {
    for (const std::uint32_t servers : {1, 2, 4}) add(workers, servers, Shape{}.chunk_bytes);
  }
  for (std::int64_t bytes = 64 << 10; bytes <= 8 << 20; bytes *= 2) {
    if (bytes != Shape{}.chunk_bytes) add(1, 1, bytes);
  }
  return all;
}

/// All rounds of one shape. The order within a round rotates, so that no variant always follows
/// the same other one.
absl::StatusOr<std::vector<Row>> measure(const Options& options, const Shape& shape) {
  const RunOptions run{.shape = shape,
                       .iterations = options.iterations,
                       .step_timeout = Milliseconds(options.step_timeout_s * 1000)};
  std::vector<VariantSamples> samples;
  for (const std::string& name : options.variants) samples.push_back({.variant = name});
  for (std::size_t round = 0; round < static_cast<std::size_t>(options.rounds); ++round) {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      VariantSamples& of_variant = samples[(i + round) % samples.size()];
      POSEIDON_ASSIGN_OR_RETURN(const Sample sample,
                                run_once(*find_variant(of_variant.variant), run));
      of_variant.rounds.push_back(sample);
    }
  }
  return make_rows(shape, options.iterations, samples);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

absl::Status run(const Options& options) {
  nlohmann::json document = {{"date", utc_now()},
                             {"machine", describe_machine()},
                             {"arguments",
                              {{"variants", options.variants},
                               {"mib", options.shape.mib},
                               {"iterations", options.iterations},
                               {"rounds", options.rounds},
                               {"sweep", options.sweep}}},
                             {"rows", nlohmann::json::array()}};
  std::fputs(table_head().c_str(), stdout);
  for (const Shape& shape : shapes(options)) {
    POSEIDON_ASSIGN_OR_RETURN(const std::vector<Row> rows, measure(options, shape));
    for (const Row& row : rows) {
      std::fputs(table_line(row).c_str(), stdout);
      document["rows"].push_back(to_json(row));
    }
    std::fflush(stdout);
  }
  if (options.json.empty()) return absl::OkStatus();
  return write_file_atomically(options.json, document.dump(2) + "\n");
}

absl::Status check(const Options& options) {
  std::vector<std::string> sorted = options.variants;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) {
    return absl::InvalidArgumentError("--variants: each one once");
  }
  if (options.shape.chunk_bytes % 4 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--chunk-bytes ", options.shape.chunk_bytes,
                                                   ": must be a multiple of 4, a float32"));
  }
  // Found out now and not after an hour.
  const std::filesystem::path folder = std::filesystem::path(options.json).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--json ", options.json, ": there is no folder ", folder.string()));
  }
  return absl::OkStatus();
}

absl::Status main_or_role(const Options& options) {
  if (!options.role.empty()) return run_role(options.role, options.control);
  POSEIDON_RETURN_IF_ERROR(check(options));
  return run(options);
}

int main_with_status(int argc, char** argv) {
  CLI::App app("Measures moving gradients between workers and servers on this machine.",
               "poseidon-bench-transport");
  Options options;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitWrongCall;
  }
  options.shape.wire_type =
      wire_dtype_from_name(options.wire_dtype).value_or(options.shape.wire_type);
  const absl::Status status = main_or_role(options);
  if (!status.ok()) {
    std::fprintf(stderr, "poseidon-bench-transport: %s\n", std::string(status.message()).c_str());
  }
  return exit_code(status);
}

}  // namespace
}  // namespace poseidon::bench

int main(int argc, char** argv) {
  try {
    return poseidon::bench::main_with_status(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "poseidon-bench-transport: unexpected: %s\n", error.what());
    return poseidon::kExitRunFailed;
  }
}
