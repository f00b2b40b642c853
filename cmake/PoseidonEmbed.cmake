# poseidon_embed(OUTPUT FUNCTION file ...): OUTPUT, a C++ file, defines poseidon::FUNCTION() (common/files/embedded_file.h),
# which carries the files into programs. Names are the files' own, without their folder.
function(poseidon_embed output function)
  list(JOIN ARGN "|" joined)
  set(script ${CMAKE_SOURCE_DIR}/cmake/embed.cmake)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DFUNCTION=${function} "-DFILES=${joined}" -P ${script}
    DEPENDS ${ARGN} ${script}
    VERBATIM)
endfunction()
