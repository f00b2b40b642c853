#include "cli/commands/trace_command.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/remote/coordinator_client.h"
#include "cli/remote/trace_data.h"
#include "cli/remote/trace_json.h"
#include "cli/terminal/at_signal.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/files/file_io.h"

namespace poseidon {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

}  // namespace

absl::Status run_trace(const TraceOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(options));
  AtomicFile file(options.to);
  if (const absl::Status opened = file.open(); !opened.ok()) {  // before any node works for it
    return absl::InvalidArgumentError(absl::StrCat("--to ", opened.message()));
  }
  const AtSignal at_signal({.words = "", .remove = file.temporary()});
  POSEIDON_RETURN_IF_ERROR(client->wait_for_coordinator(options.connect_timeout).status());
  POSEIDON_ASSIGN_OR_RETURN(const TraceData data,
                            client->trace(static_cast<std::uint32_t>(options.iterations),
                                          Milliseconds(options.timeout_s * 1000)));
  absl::Status written;
  std::string buffer;
  write_trace_json(data, [&](std::string_view piece) {
    buffer.append(piece);
    if (buffer.size() < kBufferBytes || !written.ok()) return;
    written = file.append(std::exchange(buffer, {}));
  });
  POSEIDON_RETURN_IF_ERROR(written);
  POSEIDON_RETURN_IF_ERROR(file.append(buffer));
  POSEIDON_RETURN_IF_ERROR(file.commit());
  std::size_t events = 0;
  Nanoseconds worst{0};
  for (const TimedNode& node : timed_nodes(data)) {
    events += node.events.size();
    worst = std::max(worst, node.clock_error);
  }
  write_stdout(absl::StrFormat(
      "%s: iterations %d to %d of job %s, %d events of %d nodes, clocks within %.3f ms\n",
      options.to, data.head.first_iteration(),
      data.head.first_iteration() + data.head.iterations() - 1, printable(data.head.job()), events,
      data.nodes.size(), std::chrono::duration<double, std::milli>(worst).count()));
  for (const std::string& note : data.notes)
    write_stdout(absl::StrCat("note: ", printable(note), "\n"));
  write_stdout("open it at https://ui.perfetto.dev or chrome://tracing (docs/tracing.md)\n");
  return absl::OkStatus();
}

}  // namespace poseidon
