# Compiler settings and the functions with which every folder declares what it builds.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

set(POSEIDON_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
option(POSEIDON_FUZZ "Make the targets of tests/fuzz libFuzzer programs (Clang, with sanitizers)" OFF)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(poseidon_flags INTERFACE)
target_compile_options(poseidon_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
                       -Woverloaded-virtual -Wimplicit-fallthrough -Werror
                       # Designated initialisers leave the other members at their defaults on purpose.
                       -Wno-missing-field-initializers
                       # GCC 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105651).
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                       # Which mutex or thread guards what (common/threads/mutex.h, thread_roles.h): GCC has no such check.
                       $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
if(CMAKE_UNITY_BUILD)
  # CMake includes the files by their whole paths. With these in its assertions no object were the same in two clones, and
  # ccache's of one useless to the other.
  target_compile_options(poseidon_flags INTERFACE
                         $<$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>)
  # GCC takes a file beside which others are compiled for a header, and their names for its own.
  target_compile_options(poseidon_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-shadow>
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>
                         # In so large a unit GCC 12 loses sight of what an absl::InlinedVector holds.
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
if(POSEIDON_SANITIZE)
  add_compile_options(-fsanitize=${POSEIDON_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all
                      # At -O1 GCC 12 does not see that an absl::InlinedVector knows where it lies.
                      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
                      # Nor that a program's own operator new and operator delete belong together when
                      # it has inlined only one of them.
                      $<$<CXX_COMPILER_ID:GNU>:-Wno-mismatched-new-delete>
                      # What asks to be vectorised cannot be at -O1; Clang says so.
                      $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
  add_link_options(-fsanitize=${POSEIDON_SANITIZE})
endif()

if(POSEIDON_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    message(FATAL_ERROR "POSEIDON_FUZZ needs Clang; take the asan preset")
  endif()
  # All code tells the fuzzer where it has been; libFuzzer itself is linked to the targets alone.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# All presets but `single` compile up to 16 files of a target as one (CMAKE_UNITY_BUILD): most of a file's time goes into
# other people's headers. So a test's file has a namespace of its own, named as the file is, and in a library no two files
# keep the same name to themselves. `single` compiles each file on its own; clang-tidy reads them so, too, and finds the one
# that lives on what another includes.

# poseidon_library(NAME SOURCES a.cc ... [DEPS target ...])
function(poseidon_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE poseidon_flags)
endfunction()

# poseidon_binary(NAME SOURCES a.cc ... [DEPS target ...]): a program in build/P/bin
function(poseidon_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} poseidon_flags)
endfunction()

# What every test's environment has: the sanitizers' options, and that oneDNN's threads do not spin while they wait, since
# other tests run beside. A test that sets ENVIRONMENT itself begins with it.
set(POSEIDON_TEST_ENVIRONMENT
  "OMP_WAIT_POLICY=passive"
  "ASAN_OPTIONS=detect_stack_use_after_return=1"
  "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/sanitizers/lsan.supp"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/sanitizers/tsan.supp second_deadlock_stack=1 history_size=7")

# A GoogleTest program of which a test was skipped counts as skipped, and tests/run.sh names it. By its exit status
# (tests/support/run_tests.h), and not by words in its output: those would hide that another test failed.
set(POSEIDON_TEST_TELLS_SKIPS SKIP_RETURN_CODE 77 ENVIRONMENT_MODIFICATION "POSEIDON_SKIPPED_EXIT=set:77")

# poseidon_test(NAME [SOURCES a_test.cc ...] [ONE_THREAD b_test.cc ...] [DEPS target ...] [TIMEOUT seconds]
# [LABELS label ...]): one GoogleTest program, one ctest entry; run from the source folder so that test data has short
# paths. ONE_THREAD: neither these tests nor what they test start a thread or are made for several. ThreadSanitizer has
# nothing to see there, and they are half of what it would have to build.
function(poseidon_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;ONE_THREAD;DEPS;LABELS" ${ARGN})
  if(NOT POSEIDON_SANITIZE STREQUAL "thread")
    list(APPEND ARG_SOURCES ${ARG_ONE_THREAD})
  endif()
  if(NOT ARG_SOURCES)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} poseidon_test_main poseidon_flags)
  # What is tested is as people run it; the tests themselves are half of all objects, and compile in two thirds of the
  # time. As with sanitizers GCC 12 then sees too little of absl::InlinedVector. What Clang has instrumented for the
  # sanitizers takes half of its time to optimise; with GCC it is less.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1 $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>>)
  if(POSEIDON_SANITIZE)
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:Clang>:-O0>)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
                       ENVIRONMENT "${POSEIDON_TEST_ENVIRONMENT}" ${POSEIDON_TEST_TELLS_SKIPS})
endfunction()

# poseidon_skipped_test(NAME WHY): stands for a test that cannot be built or run here, so that it is named.
function(poseidon_skipped_test name why)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${why}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: ")
endfunction()
