# Writes OUTPUT, a C++ file that holds FILES (a list joined with "|") as string literals. Run as a script by
# poseidon_embed (PoseidonEmbed.cmake).
string(REPLACE "|" ";" files "${FILES}")
list(SORT files)
set(text "// Written by cmake/embed.cmake.\n#include \"common/files/embedded_file.h\"\n\n#include <array>\n\n")
string(APPEND text "namespace poseidon {\n\nstd::span<const EmbeddedFile> ${FUNCTION}();\n")
string(APPEND text "std::span<const EmbeddedFile> ${FUNCTION}() {\n")
list(LENGTH files count)
string(APPEND text "  static constexpr std::array<EmbeddedFile, ${count}> kFiles{{\n")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME)
  file(READ ${file} hex HEX)
  # As bytes in hexadecimal escapes, one literal per 8 bytes: nothing in the file needs quoting, and no
  # compiler's limit on the length of a literal token is met.
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" escaped "${hex}")
  string(REGEX REPLACE "((\\\\x..)(\\\\x..)?(\\\\x..)?(\\\\x..)?(\\\\x..)?(\\\\x..)?(\\\\x..)?(\\\\x..)?)"
         "\"\\1\"\n      " literals "${escaped}")
  string(APPEND text "    {\"${name}\",\n      ${literals}},\n")
endforeach()
string(APPEND text "  }};\n  return kFiles;\n}\n\n}  // namespace poseidon\n")
file(WRITE ${OUTPUT} "${text}")
