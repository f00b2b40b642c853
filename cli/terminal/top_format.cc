#include "cli/terminal/top_format.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/status_format.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr std::size_t kBarWidth = 10;
constexpr std::size_t kMinNameWidth = 16;  ///< of a layer; more on a wider screen
constexpr std::size_t kMostNotes = 3;      ///< of nodes

using Table = std::vector<std::vector<std::string>>;

std::string whole_percent(double share) {
  return std::isfinite(share) ? absl::StrFormat("%3.0f%%", share * 100) : "   -";
}

std::string images_per_s(const v1::NodeStatus& worker) {
  return std::isfinite(worker.images_per_s()) ? format_count(std::llround(worker.images_per_s()))
                                              : "-";
}

std::string bar_and_percent(double share) {
  return absl::StrCat(share_bar(share, kBarWidth), " ", whole_percent(share));
}

/// Beginning and end of a name that is longer than `max`: layers differ in either.
std::string shortened(const std::string& name, std::size_t max) {
  if (name.size() <= max) return name;
  const std::size_t end = (max - 2) / 2;
  std::string_view tail = std::string_view(name).substr(name.size() - end);
  while (!tail.empty() && (static_cast<unsigned char>(tail[0]) & 0xC0) == 0x80)
    tail.remove_prefix(1);
  return str_cat(utf8_prefix(name, max - 2 - end), "..", tail);
}

std::vector<std::string> head(const v1::GetStatusResponse& status, std::size_t columns) {
  if (status.job().empty()) {
    return {status.message().empty() ? "no job yet" : status.message()};
  }
  std::string first =
      absl::StrCat(status.job_id(), "  ", status.state(), "  iteration ", iteration_of(status));
  if (const auto left = seconds_left(status); left && status.state() == "running") {
    absl::StrAppend(&first, "  ", format_duration(*left), " left");
  }
  // The bar takes the rest of the line, if it is wide enough.
  constexpr std::size_t kFrame = 4;  // two blanks and the brackets
  if (status.iterations() > 0 && first.size() + kFrame + kBarWidth <= columns) {
    absl::StrAppend(&first, "  ",
                    share_bar(static_cast<double>(status.iteration()) /
                                  static_cast<double>(status.iterations()),
                              std::min(2 * kBarWidth, columns - first.size() - kFrame)));
  }
  std::string second = absl::StrCat(
      "loss ", format_measure(status.loss()), "  ",
      has_ended(status) ? "" : absl::StrCat(format_images_per_s(status), "  "), "training ",
      format_duration(status.training_seconds()), "  epoch ", status.epoch());
  if (!std::isnan(status.test_accuracy())) {
    absl::StrAppend(&second, "  accuracy ", format_measure(status.test_accuracy()), " after ",
                    status.tested_iteration());
  }
  std::vector<std::string> lines = {first, second};
  if (!status.message().empty()) lines.push_back(status.message());
  return lines;
}

/// Whether a node is as it should be while the job is in this state.
bool is_well(const v1::NodeStatus& node) {
  return node.state() != "lost" && node.state() != "away";
}

std::vector<const v1::NodeStatus*> by_interest(
    const google::protobuf::RepeatedPtrField<v1::NodeStatus>& nodes) {
  std::vector<const v1::NodeStatus*> sorted;
  for (const v1::NodeStatus& node : nodes) sorted.push_back(&node);
  const auto key = [](const v1::NodeStatus* node) {
    const double compute = std::isfinite(node->compute_share()) ? node->compute_share() : -1.0;
    return std::tuple(is_well(*node), -compute, node->rank());
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto* a, const auto* b) { return key(a) < key(b); });
  return sorted;
}

std::vector<const v1::LayerStatus*> by_interest(
    const google::protobuf::RepeatedPtrField<v1::LayerStatus>& layers) {
  std::vector<const v1::LayerStatus*> sorted;
  for (const v1::LayerStatus& layer : layers) sorted.push_back(&layer);
  const auto key = [](const v1::LayerStatus* layer) {
    // In whole percents, or layers without any stall to speak of would trade places all the time.
    return std::tuple(-std::round(layer->stall_share() * 100),
                      -(layer->sent_bytes_per_s() + layer->received_bytes_per_s()));
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto* a, const auto* b) { return key(a) < key(b); });
  return sorted;
}

std::vector<std::string> lines_of(const Table& table) {
  std::vector<std::string> lines = absl::StrSplit(format_table(table), '\n');
  lines.pop_back();  // behind the last line end
  return lines;
}

/// `rows` of them at most, heading and a last line about the rest included.
std::vector<std::string> worker_lines(const v1::GetStatusResponse& status, std::size_t rows) {
  const auto workers = by_interest(status.workers());
  const std::size_t all = workers.size();
  const std::size_t shown = all + 1 <= rows ? all : (rows > 2 ? rows - 2 : 0);
  Table table = {{"WORKER", "STATE", "IMAGES/S", "COMPUTE", "STALL", "DATA", "ADDRESS"}};
  for (std::size_t i = 0; i < shown; ++i) {
    const v1::NodeStatus& worker = *workers[i];
    table.push_back({worker.rank() < 0 ? "-" : absl::StrCat(worker.rank()), worker.state(),
                     images_per_s(worker), bar_and_percent(worker.compute_share()),
                     bar_and_percent(worker.stall_share()),
                     whole_percent(worker.data_stall_share()), worker.address()});
  }
  std::vector<std::string> lines = lines_of(table);
  if (shown < all) {
    lines.push_back(absl::StrCat("... and ", all - shown, " more, which compute less"));
  }
  return lines;
}

std::vector<std::string> layer_lines(const v1::GetStatusResponse& status, std::size_t rows,
                                     std::size_t columns) {
  const auto layers = by_interest(status.layers());
  const std::size_t all = layers.size();
  const std::size_t shown = all + 1 <= rows ? all : (rows > 2 ? rows - 2 : 0);
  Table table = {{"LAYER", "SCHEME", "SENT", "RECEIVED", "STALL"}};
  double sent = 0.0, received = 0.0;
  for (std::size_t i = 0; i < all; ++i) {
    const v1::LayerStatus& layer = *layers[i];
    if (i >= shown) {
      sent += layer.sent_bytes_per_s();
      received += layer.received_bytes_per_s();
      continue;
    }
    table.push_back({shortened(layer.name(), std::max(kMinNameWidth, columns / 3)), layer.scheme(),
                     format_bytes_per_s(layer.sent_bytes_per_s()),
                     format_bytes_per_s(layer.received_bytes_per_s()),
                     bar_and_percent(layer.stall_share())});
  }
  std::vector<std::string> lines = lines_of(table);
  if (shown < all) {
    lines.push_back(absl::StrCat("... and ", all - shown, " more: ", format_bytes_per_s(sent),
                                 " sent, ", format_bytes_per_s(received), " received"));
  }
  return lines;
}

std::string server_line(const v1::GetStatusResponse& status) {
  std::size_t well = 0;
  std::string not_well;
  for (const v1::NodeStatus& server : status.servers()) {
    if (is_well(server)) {
      ++well;
    } else {
      absl::StrAppend(&not_well, "; server ", server.rank(), " (", server.address(), ") is ",
                      server.state());
    }
  }
  return absl::StrCat(well, " of ", status.servers().size(), " servers here", not_well);
}

/// What there is to say of nodes, a few of them.
std::vector<std::string> note_lines(const v1::GetStatusResponse& status) {
  std::vector<std::string> lines;
  const auto append = [&lines](const char* role, const auto& nodes) {
    for (const v1::NodeStatus& node : nodes) {
      if (node.note().empty() || lines.size() == kMostNotes) continue;
      lines.push_back(absl::StrCat(role, " ", node.rank() < 0 ? "-" : absl::StrCat(node.rank()),
                                   ": ", node.note()));
    }
  };
  append("server", status.servers());
  append("worker", status.workers());
  return lines;
}

}  // namespace

std::string share_bar(double share, std::size_t width) {
  const std::size_t filled = std::isfinite(share)
                                 ? static_cast<std::size_t>(std::lround(
                                       std::clamp(share, 0.0, 1.0) * static_cast<double>(width)))
                                 : 0;
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, ' '), "]");
}

std::vector<std::string> top_lines(const v1::GetStatusResponse& status, const TopSize& size) {
  std::vector<std::string> lines = head(status, size.columns);
  lines.push_back(server_line(status));
  const auto append = [&lines](std::vector<std::string> more) {
    lines.insert(lines.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  };
  append(note_lines(status));
  lines.emplace_back();
  const std::size_t left = size.rows > lines.size() ? size.rows - lines.size() : 0;
  // Layers get what workers leave, and at least half.
  const auto layers = static_cast<std::size_t>(status.layers().size()) + 2;  // a blank, a heading
  const std::size_t for_workers = std::max(left / 2, left > layers ? left - layers : 0);
  if (!status.workers().empty()) append(worker_lines(status, for_workers));
  lines.emplace_back();
  if (!status.layers().empty() && size.rows > lines.size()) {
    append(layer_lines(status, size.rows - lines.size(), size.columns));
  }
  if (lines.size() > size.rows) lines.resize(size.rows);
  for (std::string& line : lines) {
    line = printable(line);
    line.resize(utf8_prefix(line, size.columns).size());
  }
  return lines;
}

}  // namespace poseidon
