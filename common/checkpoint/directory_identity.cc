#include "common/checkpoint/directory_identity.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/entropy.h"
#include "common/base/text.h"
#include "common/checkpoint/checkpoint.h"
#include "common/files/file_io.h"

namespace poseidon {

absl::StatusOr<std::string> directory_identity(const std::filesystem::path& directory,
                                               std::string_view file, std::string_view remedy) {
  const std::filesystem::path path = directory / file;
  remove_leftovers(path);
  absl::StatusOr<std::string> text = read_file(path, 1024);
  if (absl::IsNotFound(text.status())) {
    // Two directories must never draw the same.
    const std::string fresh = absl::StrFormat("%016x%016x", system_random(), system_random());
    POSEIDON_RETURN_IF_ERROR(write_file_atomically(path, absl::StrCat(fresh, "\n")));
    return fresh;
  }
  POSEIDON_RETURN_IF_ERROR(text.status());
  const std::string identity(absl::StripSuffix(*text, "\n"));
  if (!is_store_identity(identity)) {
    return absl::DataLossError(str_cat(
        path.string(),
        " does not hold 32 hexadecimal digits: restore it from a copy of the directory, or ",
        remedy));
  }
  return identity;
}

}  // namespace poseidon
