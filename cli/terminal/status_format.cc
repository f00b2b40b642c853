#include "cli/terminal/status_format.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/terminal/progress.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

using Table = std::vector<std::vector<std::string>>;

std::string percent(double share) { return absl::StrFormat("%.1f%%", share * 100); }

template <typename Nodes>
void append_nodes(Table& table, const char* role, const Nodes& nodes) {
  for (const v1::NodeStatus& node : nodes) {
    const bool reads = std::isfinite(node.data_stall_share());  // samples: it trains
    table.push_back({absl::StrCat(role, " ", node.rank() < 0 ? "-" : absl::StrCat(node.rank())),
                     node.state(), or_dash(node.address()), or_dash(node.device()),
                     or_dash(node.metrics_address()), reads ? percent(node.compute_share()) : "-",
                     reads ? percent(node.stall_share()) : "-",
                     reads ? percent(node.data_stall_share()) : "-",
                     reads ? std::to_string(node.corrupt_samples()) : "-"});
  }
}

/// A line for each node that has a note.
template <typename Nodes>
std::string notes_to_text(const char* role, const Nodes& nodes) {
  std::string text;
  for (const v1::NodeStatus& node : nodes) {
    if (node.note().empty()) continue;
    absl::StrAppend(&text, role, " ", node.rank() < 0 ? "-" : absl::StrCat(node.rank()), " (",
                    or_dash(node.address()), "): ", node.note(), "\n");
  }
  return text;
}

std::string job_to_text(const v1::GetStatusResponse& status) {
  std::string text;
  if (status.job().empty()) {
    absl::StrAppend(&text, status.message().empty() ? "no job yet" : status.message(), "\n");
  } else {
    absl::StrAppend(&text, "job ", status.job(), " (", status.job_id(), "): ", status.state());
    if (!status.message().empty()) absl::StrAppend(&text, ": ", status.message());
    absl::StrAppend(&text, "\niteration ", iteration_of(status), "  loss ",
                    format_measure(status.loss()), "  ",
                    has_ended(status) ? "" : absl::StrCat(format_images_per_s(status), "  "),
                    "training ", format_duration(status.training_seconds()));
    if (const auto left = seconds_left(status); left && status.state() == "running") {
      absl::StrAppend(&text, "  ", format_duration(*left), " left");
    }
    if (!std::isnan(status.test_accuracy())) {
      absl::StrAppend(&text, "\ntest after ", status.tested_iteration(), " iterations  loss ",
                      format_measure(status.test_loss()), "  accuracy ",
                      format_measure(status.test_accuracy()));
    }
    absl::StrAppend(&text, "\nrun directory ", or_dash(status.run_directory()), "\n");
  }
  return text;
}

std::string plan_to_text(const v1::GetStatusResponse& status) {
  const auto seconds = [](bool known, double value) {
    return known && std::isfinite(value) ? seconds_text(value) : std::string("-");
  };
  std::string text =
      absl::StrCat("\nplan: ", status.plan_basis(), "; iteration predicted ",
                   seconds(true, status.predicted_iteration_seconds()), ", measured ",
                   seconds(true, status.measured_iteration_seconds()), "\n");
  if (!status.recommendation().empty()) {
    absl::StrAppend(&text, "a better plan: ", status.recommendation(), "\n");
  }
  // Per time: predicted / measured.
  Table table = {{"LAYER", "SCHEME", "FORWARD", "BACKWARD", "SYNC", "WHY"}};
  for (const v1::LayerStatus& layer : status.layers()) {
    const auto both = [&](double predicted, double measured) {
      return absl::StrCat(seconds(layer.has_predicted(), predicted), " / ",
                          seconds(layer.has_measured(), measured));
    };
    table.push_back({layer.name(), layer.scheme(),
                     both(layer.predicted().forward(), layer.measured().forward()),
                     both(layer.predicted().backward(), layer.measured().backward()),
                     both(layer.predicted().sync(), layer.measured().sync()), layer.reason()});
  }
  return absl::StrCat(text, "times per iteration: predicted / measured\n", format_table(table));
}

}  // namespace

std::string status_to_text(const v1::GetStatusResponse& status) {
  std::string text = job_to_text(status);
  if (status.workers().empty() && status.servers().empty()) {
    absl::StrAppend(&text, "no worker and no server has joined yet\n");
  } else {
    Table nodes = {{"NODE", "STATE", "ADDRESS", "DEVICE", "METRICS", "COMPUTE", "STALL",
                    "DATA STALL", "CORRUPT"}};
    append_nodes(nodes, "worker", status.workers());
    append_nodes(nodes, "server", status.servers());
    absl::StrAppend(&text, "\n", format_table(nodes), notes_to_text("worker", status.workers()),
                    notes_to_text("server", status.servers()));
  }
  if (!status.layers().empty()) {
    Table layers = {{"LAYER", "SCHEME", "PARAMETERS", "SENT", "RECEIVED", "STALL"}};
    for (const v1::LayerStatus& layer : status.layers()) {
      layers.push_back({layer.name(), layer.scheme(), format_count(layer.parameters()),
                        format_bytes_per_s(layer.sent_bytes_per_s()),
                        format_bytes_per_s(layer.received_bytes_per_s()),
                        percent(layer.stall_share())});
    }
    absl::StrAppend(&text, "\n", format_table(layers), plan_to_text(status));
  }
  if (!status.refused().empty()) {
    Table refused = {{"REFUSED MESSAGES", "COUNT"}};
    for (const v1::RefusedCount& reason : status.refused()) {
      refused.push_back({reason.reason(), std::to_string(reason.count())});
    }
    absl::StrAppend(&text, "\n", format_table(refused));
  }
  return printable_lines(text);
}

std::string format_table(std::vector<std::vector<std::string>> table) {
  for (auto& row : table) {
    for (std::string& cell : row) cell = printable(cell);
  }
  std::vector<std::size_t> widths;
  for (const auto& row : table) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

}  // namespace poseidon
