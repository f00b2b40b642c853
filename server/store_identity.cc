#include "server/store_identity.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/checkpoint.h"
#include "common/file_io.h"
#include "common/status_macros.h"

namespace poseidon {

absl::StatusOr<std::string> store_identity(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "STORE_IDENTITY";
  absl::StatusOr<std::string> text = read_file(path, 1024);
  if (absl::IsNotFound(text.status())) {
    std::random_device random;  // the system's: two servers must never draw the same
    std::string fresh;
    for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&fresh, "%08x", random());
    POSEIDON_RETURN_IF_ERROR(write_file_atomically(path, absl::StrCat(fresh, "\n")));
    return fresh;
  }
  POSEIDON_RETURN_IF_ERROR(text.status());
  const std::string identity(absl::StripSuffix(*text, "\n"));
  if (!is_store_identity(identity)) {
    return absl::DataLossError(absl::StrCat(
        path.string(),
        " does not hold 32 hexadecimal digits: restore it from a copy of the directory, or use an "
        "empty --data-dir and give up the checkpoints in this one"));
  }
  return identity;
}

}  // namespace poseidon
