#include "client/client_options.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/daemon/daemon.h"
#include "common/files/json_fields.h"

namespace poseidon {
namespace {

constexpr std::string_view kOptionsSource = "options";
constexpr std::int64_t kMaxRank = 4095;

void read_seconds(JsonFields& fields, const char* key, Milliseconds* out) {
  std::int64_t seconds = out->count() / 1000;
  fields.integer(key, &seconds, 1, kMaxWaitS);
  *out = Milliseconds(seconds * 1000);
}

/// Whether an address is one is best said here: later it is a thread that finds out.
void check_address(JsonFields& fields, const char* key, const std::string& value, PortZero zero) {
  if (value.empty()) return;
  const auto address = parse_host_port(value, zero);
  if (!address.ok()) fields.refuse(key, std::string(address.status().message()));
}

}  // namespace

absl::StatusOr<ClientOptions> parse_client_options(std::string_view json) {
  POSEIDON_ASSIGN_OR_RETURN(const nlohmann::json value, parse_json(json, kOptionsSource));
  ClientOptions options;
  JsonFields fields(value, kOptionsSource, "");
  fields.require("coordinator");
  fields.string("coordinator", &options.coordinator);
  check_address(fields, "coordinator", options.coordinator, PortZero::kRefused);
  fields.integer("rank", &options.rank, -1, kMaxRank);
  fields.integer("workers", &options.workers, 1, kMaxRank + 1);
  fields.integer("servers", &options.servers, 0, kMaxRank + 1);
  fields.string("run_dir", &options.run_dir);
  fields.string("listen", &options.listen);
  check_address(fields, "listen", options.listen, PortZero::kAllowed);
  fields.string("advertise", &options.advertise);
  fields.string("device", &options.device);
  fields.boolean("shared_memory", &options.shared_memory);
  fields.one_of("log", &options.log, {"trace", "debug", "info", "warning", "error", "off"});
  read_seconds(fields, "join_timeout_s", &options.join_timeout);
  read_seconds(fields, "wait_timeout_s", &options.wait_timeout);
  read_seconds(fields, "server_timeout_s", &options.server_timeout);
  read_seconds(fields, "coordinator_away_s", &options.away_timeout);
  if (const nlohmann::json* const tls = fields.value("tls"); tls != nullptr) {
    JsonFields nested(*tls, kOptionsSource, "tls");
    nested.string("tls_dir", &options.tls.tls_dir);
    nested.string("join_token_file", &options.tls.join_token_file);
    fields.add(nested.finish());
  }
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  return options;
}

}  // namespace poseidon
