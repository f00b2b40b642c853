#pragma once

// The interface between the benchmark and the variants that it compares. A new variant is one more
// file with two classes and one more entry in variant.cc.
//
// Called by: role.cc, which creates one end in a process of its own. Calls: the variant's sockets
// or memory.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/transport/workload.h"
#include "common/base/clock.h"
#include "common/plan/plan.h"
#include "common/security/security.h"

namespace poseidon::bench {

/// One server process's end. Failures on its own threads call give_up.
class ServerEnd {
 public:
  virtual ~ServerEnd() = default;
  /// First. The address for workers, 127.0.0.1:PORT.
  virtual absl::StatusOr<std::string> listen() = 0;
  /// Second; returns once workers may connect. They do so after it.
  virtual absl::Status serve(const Plan& plan, ServerIndex self) = 0;
};

/// One worker process's end.
class WorkerEnd {
 public:
  virtual ~WorkerEnd() = default;
  /// Connected and ready for the first iteration when it returns.
  virtual absl::Status connect() = 0;
  /// Sends all gradients and returns when all results are in place.
  virtual absl::Status iterate(Iteration iteration) = 0;
};

/// What a worker's end is made of; plan and workload outlive it.
struct WorkerContext {
  const Plan* plan;
  WorkerRank rank;
  Workload* workload;
  std::shared_ptr<Security> security;
};

struct Variant {
  std::string_view name;  ///< of --variants
  Answer answer;
  /// Called before anything large is allocated in a fresh process that does nothing else.
  void (*prepare_process)();
  std::unique_ptr<ServerEnd> (*make_server)(const std::shared_ptr<Security>& security);
  std::unique_ptr<WorkerEnd> (*make_worker)(const WorkerContext& context);
  bool tls = false;  ///< all processes of a run get certificates
};

/// Every ratio is to this one.
inline constexpr std::string_view kReference = "raw";

std::span<const Variant> all_variants();
const Variant* find_variant(std::string_view name);  ///< null: no such one

std::unique_ptr<ServerEnd> make_raw_server(const std::shared_ptr<Security>& security);
std::unique_ptr<WorkerEnd> make_raw_worker(const WorkerContext& context);
std::unique_ptr<ServerEnd> make_poseidon_server(const std::shared_ptr<Security>& security);
std::unique_ptr<WorkerEnd> make_poseidon_worker(const WorkerContext& context);
std::unique_ptr<ServerEnd> make_naive_server(const std::shared_ptr<Security>& security);
std::unique_ptr<WorkerEnd> make_naive_worker(const WorkerContext& context);

/// Longest silence of another process that an end accepts. Usually the parent's --timeout-s ends a
/// stalled run; this only bounds every wait.
inline constexpr std::chrono::minutes kEndTimeout{10};

/// Ends this process; the parent shows its last message.
[[noreturn]] void give_up(const absl::Status& why);

}  // namespace poseidon::bench
