#include "bench/transport/report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/median.h"
#include "common/base/text.h"

namespace poseidon::bench {
namespace {

template <typename Figure>
double median_of(const std::vector<Sample>& rounds, const Figure& figure) {
  std::vector<double> values;
  for (const Sample& sample : rounds) values.push_back(figure(sample));
  return median(std::move(values));
}

/// Median over rounds of figure(ours) / figure(reference's in the same round).
template <typename Figure>
double ratio_of(const std::vector<Sample>& rounds, const std::vector<Sample>& reference,
                const Figure& figure) {
  std::vector<double> values;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    values.push_back(figure(rounds[i]) / figure(reference[i]));
  }
  return median(std::move(values));
}

std::string ratio_text(double ratio) { return ratio > 0.0 ? absl::StrFormat("%.2f", ratio) : "-"; }

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

std::vector<Row> make_rows(const Shape& shape, Iteration iterations,
                           const std::vector<VariantSamples>& samples) {
  const double gb =
      static_cast<double>(shape.bytes_per_iteration()) * static_cast<double>(iterations) / 1e9;
  const auto goodput = [gb](const Sample& sample) { return gb / sample.seconds; };
  const auto worker_cpu = [gb](const Sample& sample) { return sample.worker_cpu_s / gb; };
  const auto server_cpu = [gb](const Sample& sample) { return sample.server_cpu_s / gb; };
  const auto cpu = [gb](const Sample& sample) {
    return (sample.worker_cpu_s + sample.server_cpu_s) / gb;
  };
  const auto reference =
      std::ranges::find(samples, std::string(kReference), &VariantSamples::variant);
  std::vector<Row> rows;
  for (const auto& [variant, rounds] : samples) {
    Row row;
    row.variant = variant;
    row.shape = shape;
    row.seconds_per_iteration = median_of(rounds, [iterations](const Sample& sample) {
      return sample.seconds / static_cast<double>(iterations);
    });
    row.goodput_gb_s = median_of(rounds, goodput);
    row.worker_cpu_s_per_gb = median_of(rounds, worker_cpu);
    row.server_cpu_s_per_gb = median_of(rounds, server_cpu);
    row.cpu_s_per_gb = median_of(rounds, cpu);
    if (reference != samples.end()) {
      row.goodput_ratio = ratio_of(rounds, reference->rounds, goodput);
      row.cpu_ratio = ratio_of(rounds, reference->rounds, cpu);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string table_head() {
  return "                                                     CPU s/GB                  ratio to "
         "raw\n"
         "workers servers chunk KiB  variant        GB/s   worker  server  both     GB/s  CPU "
         "s/GB\n";
}

std::string table_line(const Row& row) {
  return absl::StrFormat("%7d %7d %9d  %-12s %6.2f   %6.3f  %6.3f  %6.3f  %6s    %6s\n",
                         row.shape.workers, row.shape.servers, row.shape.chunk_bytes >> 10,
                         row.variant, row.goodput_gb_s, row.worker_cpu_s_per_gb,
                         row.server_cpu_s_per_gb, row.cpu_s_per_gb, ratio_text(row.goodput_ratio),
                         ratio_text(row.cpu_ratio));
}

nlohmann::json to_json(const Row& row) {
  nlohmann::json json = {{"variant", row.variant},
                         {"workers", row.shape.workers},
                         {"servers", row.shape.servers},
                         {"mib", row.shape.mib},
                         {"chunk_bytes", row.shape.chunk_bytes},
                         {"wire_dtype", std::string(wire_dtype_name(row.shape.wire_type))},
                         {"seconds_per_iteration", row.seconds_per_iteration},
                         {"goodput_gb_s", row.goodput_gb_s},
                         {"worker_cpu_s_per_gb", row.worker_cpu_s_per_gb},
                         {"server_cpu_s_per_gb", row.server_cpu_s_per_gb},
                         {"cpu_s_per_gb", row.cpu_s_per_gb}};
  if (row.goodput_ratio > 0.0) {
    json["goodput_ratio_to_raw"] = row.goodput_ratio;
    json["cpu_ratio_to_raw"] = row.cpu_ratio;
  }
  return json;
}

nlohmann::json describe_machine() {
  utsname system{};
  ::uname(&system);
  std::array<double, 1> load{};
  ::getloadavg(load.data(), 1);
  return {{"cpu", cpu_model()},
          {"cores", std::thread::hardware_concurrency()},
          {"kernel", std::string(system.release)},
          {"load_1_minute", load[0]}};
}

}  // namespace poseidon::bench
