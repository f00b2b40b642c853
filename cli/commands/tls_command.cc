#include "cli/commands/tls_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/base/entropy.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/security/certificates.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = 65536;
constexpr std::size_t kMaxNodeNameLength = 64;
constexpr mode_t kSecret = 0600;
constexpr mode_t kPublic = 0644;
constexpr std::string_view kAuthorityFolder = "ca";
/// Authorities differ in their names, so that a message about two of them says which is which.
std::string authority_name() {
  return absl::StrFormat("Poseidon private authority %08x",
                         static_cast<std::uint32_t>(system_random()));
}
/// Clocks of machines differ; certificates begin a little earlier.
constexpr std::chrono::hours kClockSkew{1};

struct NewFile {
  const char* name;
  const std::string* contents;
  mode_t mode;
};

Validity valid_for(int days) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return {.from_unix_s = std::chrono::seconds(now - kClockSkew).count(),
          .until_unix_s = std::chrono::seconds(now + std::chrono::hours(24) * days).count()};
}

absl::Status write_new_file(const fs::path& path, const std::string& contents, mode_t mode) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file.is_open()) return absl::ErrnoToStatus(errno, path.string());
  POSEIDON_RETURN_IF_ERROR(write_fully(file.get(), path, contents));
  return ::fsync(file.get()) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, path.string());
}

/// The folder appears with all its files or not at all, readable by its owner alone. ALREADY_EXISTS
/// when the folder exists.
absl::Status write_new_folder(const fs::path& folder, const std::vector<NewFile>& files) {
  std::error_code error;
  if (fs::exists(folder, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat(folder.string(), " already exists and was not changed"));
  }
  std::string beginning = folder.string() + ".new-XXXXXX";
  if (::mkdtemp(beginning.data()) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot make ", folder.string(), ": ",
                     std::error_code(errno, std::generic_category()).message()));
  }
  absl::Status status;
  for (const NewFile& file : files) {
    if (status.ok())
      status = write_new_file(fs::path(beginning) / file.name, *file.contents, file.mode);
  }
  if (status.ok()) status = rename_folder(beginning, folder);
  if (!status.ok()) fs::remove_all(beginning, error);
  return status;
}

absl::StatusOr<KeyPair> read_authority(const fs::path& to) {
  const fs::path folder = to / kAuthorityFolder;
  KeyPair authority;
  for (const auto& [name, text] :
       {std::pair("ca.crt", &authority.certificate_pem), std::pair("ca.key", &authority.key_pem)}) {
    auto read = read_file(folder / name, kMaxFileBytes);
    if (!read.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("no authority: ", read.status().message(),
                                                     "; `poseidon tls init --to ", to.string(),
                                                     "` makes one"));
    }
    *text = *std::move(read);
  }
  if (const absl::Status fits = check_key(authority.certificate_pem, authority.key_pem);
      !fits.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(folder.string(), ": ", fits.message()));
  }
  return authority;
}

/// At most until its authority expires, because it becomes invalid with the authority without a
/// message of its own.
absl::Status issue(const KeyPair& authority, PeerRole role, const std::string& name,
                   const fs::path& folder, int days) {
  POSEIDON_ASSIGN_OR_RETURN(const CertificateFacts signer,
                            read_certificate(authority.certificate_pem));
  Validity validity = valid_for(days);
  const std::int64_t end = signer.validity.until_unix_s;
  if (end <= valid_for(0).until_unix_s) {
    return absl::FailedPreconditionError(
        absl::StrCat("the authority \"", signer.subject, "\" has expired at ", utc_text(end),
                     ": `poseidon tls init --to FOLDER` makes another, and then every node of the "
                     "cluster needs a certificate of that one"));
  }
  const std::int64_t wanted =
      std::exchange(validity.until_unix_s, std::min(validity.until_unix_s, end));
  if (std::chrono::seconds(wanted - end) > std::chrono::hours(24)) {
    std::fprintf(stderr, "%s\n",
                 absl::StrCat("warning: ", folder.string(), " is good until ", utc_text(end),
                              ", when its authority expires, and no longer; `poseidon tls init "
                              "--to FOLDER` makes another authority")
                     .c_str());
  }
  POSEIDON_ASSIGN_OR_RETURN(const KeyPair node, issue_certificate(authority, role, name, validity));
  return write_new_folder(folder, {{"ca.crt", &authority.certificate_pem, kPublic},
                                   {"tls.crt", &node.certificate_pem, kPublic},
                                   {"tls.key", &node.key_pem, kSecret}});
}

/// Where a role's certificate is used, for messages.
std::string_view bearer_of(PeerRole role) {
  switch (role) {
    case PeerRole::kCoordinator:
      return "--tls-dir for poseidon-coordinator";
    case PeerRole::kServer:
      return "--tls-dir for poseidon-server";
    case PeerRole::kWorker:
      return "--tls-dir for poseidon-worker";
    case PeerRole::kOperator:
      return "--tls-dir for the command poseidon";
    case PeerRole::kMonitor:
      break;
  }
  return "for Prometheus and others that only read metrics";
}

void tell(const std::string& what, const fs::path& folder) {
  std::printf("%-32s %s\n", folder.c_str(), what.c_str());
}

bool plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNodeNameLength && name.front() != '.' &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

}  // namespace

std::string peer_role_list() {
  std::string list;
  for (const PeerRole role : kAllPeerRoles) {
    list += str_cat(list.empty() ? "" : ", ", peer_role_name(role));
  }
  return list;
}

absl::Status run_tls_init(const TlsInitOptions& options) {
  const fs::path to = options.to;
  POSEIDON_RETURN_IF_ERROR(create_folder(to));
  std::error_code error;
  const fs::path authority_folder = to / kAuthorityFolder;
  if (fs::exists(authority_folder, error)) {
    tell("kept: the existing authority", authority_folder);
  } else {
    POSEIDON_ASSIGN_OR_RETURN(const KeyPair made,
                              make_authority(authority_name(), valid_for(kMaxCertificateDays)));
    POSEIDON_RETURN_IF_ERROR(write_new_folder(
        authority_folder,
        {{"ca.crt", &made.certificate_pem, kPublic}, {"ca.key", &made.key_pem, kSecret}}));
    tell("made: the authority; keep ca.key away from the cluster", authority_folder);
  }
  POSEIDON_ASSIGN_OR_RETURN(const KeyPair authority, read_authority(to));
  for (const PeerRole role : kAllPeerRoles) {
    const std::string name(peer_role_name(role));
    if (fs::exists(to / name, error)) {
      tell("kept", to / name);
      continue;
    }
    POSEIDON_RETURN_IF_ERROR(issue(authority, role, name, to / name, options.days));
    tell(str_cat("made: ", bearer_of(role)), to / name);
  }
  return absl::OkStatus();
}

absl::Status run_tls_issue(const TlsIssueOptions& options) {
  const auto role = peer_role_from_name(options.role);
  if (!role) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no role \"", options.role, "\"; one of ", peer_role_list()));
  }
  const std::string name = options.name.empty() ? options.role : options.name;
  if (!plain_name(name) || name == kAuthorityFolder) {
    return absl::InvalidArgumentError(
        absl::StrCat("--name \"", name, "\": up to ", kMaxNodeNameLength,
                     " letters, digits, '-', '_' and '.' expected, and not \"",
                     std::string(kAuthorityFolder), "\""));
  }
  const fs::path folder = fs::path(options.to) / name;
  POSEIDON_ASSIGN_OR_RETURN(const KeyPair authority, read_authority(options.to));
  const absl::Status issued = issue(authority, *role, name, folder, options.days);
  if (absl::IsAlreadyExists(issued)) {
    return absl::InvalidArgumentError(
        absl::StrCat(issued.message(), "; give another --name, or move it away to replace it"));
  }
  POSEIDON_RETURN_IF_ERROR(issued);
  tell(absl::StrCat("made: certificate of a ", options.role), folder);
  return absl::OkStatus();
}

}  // namespace poseidon
