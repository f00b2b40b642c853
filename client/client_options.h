#pragma once

// The options of a client, as the program writes them: one JSON object. Pure.
//
// Called by: client/client.cc. Calls: common/files/json_fields.h.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/security/security_options.h"

namespace poseidon {

struct ClientOptions {
  std::string coordinator;   ///< HOST:PORT
  std::int64_t rank = -1;    ///< that this worker must have; -1: any
  std::int64_t workers = 1;  ///< of the job
  std::int64_t servers = 0;  ///< of the job; 0: all there are
  std::string run_dir;       ///< on the coordinator's machine; "": a new one
  std::string listen;        ///< ADDR:PORT for other workers; "": any port, towards the coordinator
  std::string advertise;     ///< host under which others reach it; "": as in `listen`
  std::string device;        ///< for people
  SecurityOptions tls;
  bool shared_memory = true;
  std::string log = "warning";  ///< a level of common/daemon/log.h
  Milliseconds join_timeout{1800000};
  Milliseconds wait_timeout{43200000};
  Milliseconds server_timeout{30000};
  Milliseconds away_timeout{3600000};
};

/// INVALID_ARGUMENT, naming key, value and remedy.
absl::StatusOr<ClientOptions> parse_client_options(std::string_view json);

}  // namespace poseidon
