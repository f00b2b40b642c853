#pragma once

// The credentials of a process, as its options name them (common/security/security.h uses them). ""
// is off.

#include <string>

namespace CLI {
class App;
}

namespace poseidon {

struct SecurityOptions {
  std::string tls_dir;          ///< folder with ca.crt, tls.crt and tls.key
  std::string join_token_file;  ///< file with the secret that the whole cluster knows
};

/// Adds --tls-dir and --join-token-file.
void add_security_options(CLI::App& app, SecurityOptions& options);

}  // namespace poseidon
