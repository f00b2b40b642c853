#pragma once

// The program's node in the cluster: transports, control stream and the job's epochs, on threads of
// its own that take no signals.
//
// Called by: client/client.cc. Calls: client/declare.h, sync/node/worker_node.h with
// client/program_framework.h, common/node/control_client.h, common/grpc.

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "client/client_options.h"
#include "client/program_framework.h"
#include "common/node/control_client.h"
#include "common/security/security.h"
#include "common/threads/mutex.h"
#include "sync/node/worker_node.h"

namespace poseidon {

/// One thread, the program's.
class ProgramNode {
 public:
  /// `parts` outlives the node. `job_json`: as it is declared.
  ProgramNode(ClientOptions options, std::string job_json, ProgramParts* parts);
  ~ProgramNode();  ///< leaves the cluster, if it has not ended, and waits for all threads

  /// Declares, joins and takes part until the job's end, all on another thread. Failures end
  /// ProgramParts::link.
  void start();

 private:
  void run();
  absl::Status take_part(const std::shared_ptr<Security>& security, const std::string& job);
  absl::Status serve(ControlClientOptions options, WorkerNode& node);
  void leave(const std::string& reason);

  const ClientOptions options_;
  const std::string job_json_;
  ProgramParts* const parts_;
  std::thread thread_;

  Mutex mutex_;
  ControlClient* client_ ABSL_GUARDED_BY(mutex_) = nullptr;  ///< while it runs
  bool is_leaving_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace poseidon
