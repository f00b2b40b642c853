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
find_package(dnnl CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(GTest CONFIG REQUIRED)
find_package(benchmark CONFIG REQUIRED)

# Debian's RocksDB config asks for libraries that only its static form needs.
find_path(ROCKSDB_INCLUDE_DIR rocksdb/db.h REQUIRED)
find_library(ROCKSDB_LIBRARY rocksdb REQUIRED)
add_library(poseidon_rocksdb INTERFACE)
target_include_directories(poseidon_rocksdb SYSTEM INTERFACE ${ROCKSDB_INCLUDE_DIR})
target_link_libraries(poseidon_rocksdb INTERFACE ${ROCKSDB_LIBRARY})

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
