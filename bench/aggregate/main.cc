// poseidon-bench-aggregate: measures the loops of the data path (loops.h) against the core's memory
// bandwidth, or on a server's threads (server.h). All run in turns, so that a disturbance affects
// all alike.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/aggregate/loops.h"
#include "bench/aggregate/server.h"
#include "common/base/check.h"
#include "common/base/median.h"
#include "common/files/file_io.h"
#include "common/tensor/kernels.h"
#include "common/threads/thread_team.h"
#include "nlohmann/json.hpp"

namespace poseidon::bench {
namespace {

struct Options {
  std::size_t mib = 64;
  std::size_t rounds = 15;
  int threads = 0;
  std::string filter;
  std::string json;
};

/// Of this thread: a busy machine disturbs it less than the wall clock.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Measured {
  Loop loop;
  std::vector<double> bytes_per_s;  ///< by round

  bool is_yardstick(std::string_view kind) const {
    return loop.kernels == "core" && loop.name.starts_with(kind);
  }
};

/// The best of the core's own loops of a kind, "add/" or "copy/".
const Measured* yardstick(const std::vector<Measured>& all, std::string_view kind) {
  const Measured* best = nullptr;
  for (const Measured& one : all) {
    if (!one.is_yardstick(kind)) continue;
    if (best == nullptr || median(one.bytes_per_s) > median(best->bytes_per_s)) best = &one;
  }
  POSEIDON_CHECK(best != nullptr, "the core's own loops are always measured");
  return best;
}

/// Median over rounds of the ratio within a round.
double ratio(const Measured& one, const Measured& reference) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < one.bytes_per_s.size(); ++i) {
    ratios.push_back(one.bytes_per_s[i] / reference.bytes_per_s[i]);
  }
  return median(std::move(ratios));
}

std::vector<Measured> measure(const Options& options) {
  std::vector<Measured> all;
  for (Loop& loop : all_loops(options.mib)) {
    const std::string name = loop.name + "/" + loop.kernels;
    if (loop.kernels == "core" || name.find(options.filter) != std::string::npos) {
      all.push_back({.loop = std::move(loop), .bytes_per_s = {}});
    }
  }
  for (Measured& one : all) one.loop.run();  // page faults, clocks
  for (std::size_t round = 0; round < options.rounds; ++round) {
    for (Measured& one : all) {
      const double begin = cpu_seconds();
      one.loop.run();
      one.bytes_per_s.push_back(one.loop.moved_bytes / (cpu_seconds() - begin));
    }
  }
  return all;
}

/// Prints the table; the rows as JSON.
nlohmann::json report(const std::vector<Measured>& all) {
  const Measured& add = *yardstick(all, "add/");
  const Measured& copy = *yardstick(all, "copy/");
  std::printf("kernels in use: %s\n", kernels().name);
  std::printf("yardsticks: add = %s, copy = %s\n\n", add.loop.name.c_str(), copy.loop.name.c_str());
  std::printf("%-30s %-10s %8s %8s %8s\n", "loop", "kernels", "GiB/s", "to add", "to copy");
  nlohmann::json rows = nlohmann::json::array();
  for (const Measured& one : all) {
    const double bytes_per_s = median(one.bytes_per_s);
    const double to_add = ratio(one, add), to_copy = ratio(one, copy);
    std::printf("%-30s %-10s %8.1f %8.2f %8.2f\n", one.loop.name.c_str(), one.loop.kernels.c_str(),
                bytes_per_s / (1 << 30), to_add, to_copy);
    rows.push_back({{"loop", one.loop.name},
                    {"kernels", one.loop.kernels},
                    {"bytes_per_s", bytes_per_s},
                    {"ratio_to_add", to_add},
                    {"ratio_to_copy", to_copy}});
  }
  return rows;
}

/// Prints both tables; their rows as JSON.
nlohmann::json report_server(const Options& options) {
  const ServerOptions server{
      .mib = options.mib, .rounds = options.rounds, .threads = options.threads};
  std::printf("kernels in use: %s\n\n", kernels().name);
  std::printf("%-5s %7s %9s %7s %8s %9s %13s\n", "wire", "workers", "chunk KiB", "threads", "GB/s",
              "CPU s/GB", "to 1 thread");
  nlohmann::json rows = nlohmann::json::array();
  for (const ServerRow& one : measure_server(server)) {
    std::printf("%-5s %7zu %9zu %7d %8.2f %9.2f %13.2f\n", one.wire.c_str(), one.workers,
                one.chunk_bytes >> 10, one.threads, one.bytes_per_s * 1e-9, one.cpu_s_per_gb,
                one.to_one_thread);
    rows.push_back({{"wire", one.wire},
                    {"workers", one.workers},
                    {"chunk_bytes", one.chunk_bytes},
                    {"threads", one.threads},
                    {"bytes_per_s", one.bytes_per_s},
                    {"cpu_s_per_gb", one.cpu_s_per_gb},
                    {"ratio_to_one_thread", one.to_one_thread}});
  }
  std::printf("\n%-22s %9s %9s\n", "a loop without work:", "awake us", "asleep us");
  for (const SplitRow& one : measure_split(server)) {
    std::printf("%18zu KiB %9.2f %9.2f\n", one.chunk_bytes >> 10, one.awake_us, one.asleep_us);
    rows.push_back({{"chunk_bytes", one.chunk_bytes},
                    {"split_awake_us", one.awake_us},
                    {"split_asleep_us", one.asleep_us}});
  }
  return rows;
}

int run(const Options& options) {
  const nlohmann::json document = {
      {"kernels", kernels().name},
      {"rounds", options.rounds},
      {"rows", options.threads > 0 ? report_server(options) : report(measure(options))}};
  if (options.json.empty()) return 0;
  const absl::Status written = write_file_atomically(options.json, document.dump(2) + "\n");
  if (written.ok()) return 0;
  std::fprintf(stderr, "poseidon-bench-aggregate: %s\n", written.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace poseidon::bench

int main(int argc, char** argv) {
  poseidon::bench::Options options;
  CLI::App app{"The loops of the data path beside what the core's memory can do."};
  app.add_option("--mib", options.mib, "MiB of each array; more than the caches hold")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds; every loop runs once in each")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--threads", options.threads,
                 "instead of the loops: a server's sums and steps on 1 and on so many threads")
      ->check(CLI::Range(2, poseidon::kMaxTeamThreads));
  app.add_option("--filter", options.filter, "only loops whose name/kernels contain this");
  app.add_option("--json", options.json, "write the figures to this file");
  app.footer(
      "GiB/s counts what a loop must read and write (bench/aggregate/loops.h). The ratios are\n"
      "medians over rounds, to the best of the core's own loops in the same round.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return poseidon::bench::run(options);
}
