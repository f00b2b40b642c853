# Every third-party library, found once. All come from Debian 12; deploy/dependencies.sh installs them.
# Each wrapper carries its include folder as SYSTEM so that our warnings stay ours.

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(GTest CONFIG REQUIRED)

# Found by file: Debian's CMake configs of the first two ask for libraries that we do not
# need (OpenCL, static compression libraries), and the others have none.
function(poseidon_find_by_file target header library)
  find_path(${target}_INCLUDE_DIR ${header} REQUIRED)
  find_library(${target}_LIBRARY ${library} REQUIRED)
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE_DIR})
  target_link_libraries(${target} INTERFACE ${${target}_LIBRARY})
endfunction()
poseidon_find_by_file(poseidon_rocksdb rocksdb/db.h rocksdb)
poseidon_find_by_file(poseidon_onednn dnnl.hpp dnnl)
poseidon_find_by_file(poseidon_isal isa-l/crc.h isal)
poseidon_find_by_file(poseidon_microhttpd microhttpd.h microhttpd)
poseidon_find_by_file(poseidon_gnutls gnutls/gnutls.h gnutls)
poseidon_find_by_file(poseidon_systemd systemd/sd-daemon.h systemd)

# CUDA is optional: with the toolkit the engine's plug-in is built, without it everything else is.
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  set(POSEIDON_HAVE_CUDA_TOOLKIT ON)
  message(STATUS "CUDA toolkit found: ${CMAKE_CUDA_COMPILER}")
else()
  set(POSEIDON_HAVE_CUDA_TOOLKIT OFF)
  message(STATUS "CUDA toolkit not found: building for CPU only")
endif()
